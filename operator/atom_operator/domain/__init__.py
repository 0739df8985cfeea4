"""Every value that crosses a stage of a reconcile, from resolved options to the apply report.

Frozen data only: no clients, no clocks, no decisions. One file per concept; imported from here.
"""

from atom_operator.domain.engines import (
    DraftCounts,
    EngineHealth,
    EngineView,
    LoadProgress,
    Measured,
)
from atom_operator.domain.objects import (
    ATOM_DEPLOYMENT,
    CHILD_KINDS,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    JOB,
    NODE,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    VOLUME,
    VOLUME_CLAIM,
    WORKLOAD_KINDS,
    ChildKey,
    Manifest,
    ObjectKey,
    Owner,
)
from atom_operator.domain.observed import (
    DeploymentState,
    EndedPod,
    ForeignEdit,
    Observed,
    PodState,
    SilentPod,
)
from atom_operator.domain.options import (
    Accelerator,
    Download,
    EngineOptions,
    FieldProblem,
    JobOptions,
    ModelLocation,
    SourceKind,
)
from atom_operator.domain.plan import (
    Plan,
)
from atom_operator.domain.replica_capacity import (
    Capacity,
    CapacityVerdict,
    ConditionStatus,
    Evidence,
    FactsLookup,
    InspectedConfig,
    StartupTimes,
)
from atom_operator.domain.report import (
    ApplyReport,
    Refusal,
)
from atom_operator.domain.rollout_state import (
    PodRevision,
    Rollback,
    Rollout,
    RolloutStrategy,
    Target,
)
from atom_operator.domain.routes import RouteCollision, RouteFindings
from atom_operator.domain.supply import (
    Amount,
    NodeSupply,
    Supply,
)
from atom_operator.kinds import Kind

__all__ = [
    "ATOM_DEPLOYMENT",
    "CHILD_KINDS",
    "CONFIG_MAP",
    "CONTROLLER_REVISION",
    "DEPLOYMENT",
    "DISRUPTION_BUDGET",
    "EVENT",
    "JOB",
    "NODE",
    "POD",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "VOLUME",
    "VOLUME_CLAIM",
    "WORKLOAD_KINDS",
    "Accelerator",
    "Amount",
    "ApplyReport",
    "Capacity",
    "CapacityVerdict",
    "ChildKey",
    "ConditionStatus",
    "DeploymentState",
    "Download",
    "DraftCounts",
    "EndedPod",
    "EngineHealth",
    "EngineOptions",
    "EngineView",
    "Evidence",
    "FactsLookup",
    "FieldProblem",
    "ForeignEdit",
    "InspectedConfig",
    "JobOptions",
    "Kind",
    "LoadProgress",
    "Manifest",
    "Measured",
    "ModelLocation",
    "NodeSupply",
    "ObjectKey",
    "Observed",
    "Owner",
    "Plan",
    "PodRevision",
    "PodState",
    "Refusal",
    "Rollback",
    "Rollout",
    "RolloutStrategy",
    "RouteCollision",
    "RouteFindings",
    "SilentPod",
    "SourceKind",
    "StartupTimes",
    "Supply",
    "Target",
]
