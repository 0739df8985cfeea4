"""Every value that crosses a stage of a reconcile, from resolved options to the apply report.

Frozen data only: no clients, no clocks, no decisions. Manifests themselves stay plain mappings,
because they must reach the API server exactly as rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from atom.sizing import Concurrency, ModelFacts
from atom_operator import constants
from atom_operator.constants import Reason
from atom_operator.integrations import Integrations
from atom_operator.kinds import LEADER_WORKER_SET
from atom_operator.kinds import Kind as Kind

Manifest = dict[str, Any]
ConditionStatus = Literal["True", "False", "Unknown"]


class ObjectKey(NamedTuple):
    """Namespace and name of an AtomDeployment."""

    namespace: str
    name: str


class Owner(NamedTuple):
    """One AtomDeployment, told apart from a former one of the same name."""

    key: ObjectKey
    uid: str


DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
SERVICE = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
ATOM_DEPLOYMENT = Kind(constants.GROUP, constants.VERSION, constants.KIND, constants.PLURAL)
POD = Kind("", "v1", "Pod", "pods")
NODE = Kind("", "v1", "Node", "nodes")
EVENT = Kind("", "v1", "Event", "events")
WORKLOAD_KINDS = (DEPLOYMENT, LEADER_WORKER_SET)
JOB = Kind("batch", "v1", "Job", "jobs")
VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
# In the order of creation: what a pod needs comes before the Deployment, and so does the record of
# what ran before it changes.
CHILD_KINDS = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    SERVICE,
    DISRUPTION_BUDGET,
    CONTROLLER_REVISION,
    DEPLOYMENT,
)


class ChildKey(NamedTuple):
    """One child object; its namespace is its owner's."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """Why a spec is not accepted: the field, what is wrong, and the remedy."""

    field: str
    message: str
    reason: Reason = Reason.INVALID_SPEC

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SourceKind(StrEnum):
    """Scheme of spec.model.source."""

    HUB = "hf"
    CLAIM = "pvc"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Download:
    """What a Job fetches from the hub before pods mount it."""

    repository: str
    revision: str | None = None
    token_secret: tuple[str, str] | None = None  # name, key


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where the pods find the weights, and what the engine's --model says."""

    kind: SourceKind
    argument: str
    claim: str | None = None
    revision: str | None = None
    token_secret: tuple[str, str] | None = None  # name, key
    download: Download | None = None  # how they get there, when that is ours to do

    @property
    def default_name(self) -> str:
        name = self.download.repository if self.download else self.argument
        return name.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's options with every default resolved; None leaves the choice to the engine."""

    image: str
    served_name: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: Literal["auto", "bf16", "fp32"]
    prefix_caching: bool
    scheduling_policy: Literal["mixed", "prefillFirst"]
    tensor_parallel: int  # ranks of one replica, over all its nodes
    nodes: int
    drain_seconds: int
    extra_args: tuple[str, ...]
    env: tuple[Mapping[str, Any], ...]

    @property
    def devices_per_pod(self) -> int:
        return self.tensor_parallel // self.nodes


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The device of a replica. `memory_bytes` is per device; None when nobody knows it."""

    type: Literal["amd", "cpu"]
    memory_bytes: int | None
    product: str | None = None
    resource_name: str | None = None
    device_ids: tuple[str, ...] = ()  # PCI ids of the product, for node affinity
    device_groups: tuple[int, ...] = ()  # numeric ids of the groups that own the device files


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """What a start took; `weights_seconds` of it to load `checkpoint_bytes`."""

    total_seconds: float
    weights_seconds: float
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one replica holds: predicted by the plan, or measured by the engine at its start."""

    weights_bytes: int
    kv_bytes_per_token: int
    num_blocks: int
    kv_tokens: int
    max_sequences: int
    max_model_len: int
    limited_by: str
    concurrency: tuple[Concurrency, ...]
    reserve_bytes: int = 0  # beside weights and KV cache; 0 where nobody tells it
    total_bytes: int = 0  # of the device; likewise
    startup: StartupTimes | None = None  # measured only


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine of one kind (`key`) measured, beside what had been predicted without it."""

    key: str
    revision: str
    predicted_reserve_bytes: int
    measured_reserve_bytes: int
    planned_total_bytes: int
    measured_total_bytes: int
    startup: StartupTimes | None = None


@dataclass(frozen=True, slots=True)
class CapacityVerdict:
    """Whether the model fits; `capacity` is there when it does.

    `evidence` is what has corrected it, `uncorrected` the same from the model's shape alone.
    """

    fits: ConditionStatus
    reason: Reason
    message: str
    capacity: Capacity | None = None
    evidence: Evidence | None = None
    uncorrected: CapacityVerdict | None = None

    @property
    def prediction(self) -> Capacity | None:
        """What the shape alone promises."""
        return self.capacity if self.uncorrected is None else self.uncorrected.capacity


@dataclass(frozen=True, slots=True)
class FactsLookup:
    """Facts of the model, or why there are none."""

    facts: ModelFacts | None
    reason: Reason
    message: str
    # Whether the same spec always leads to them. Others (read from the hub, by a Job) shape the
    # plan and never the pods, which would be restarted when they come or go.
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class InspectedConfig:
    """The config.json that an inspection has read. `model` is source and revision."""

    model: str
    text: str


class RolloutStrategy(StrEnum):
    """How a Deployment replaces pods."""

    SURGE = "Surge"  # a spare pod first, then an old one goes
    IN_PLACE = "InPlace"  # one old pod goes, then a new one takes its devices
    RECREATE = "Recreate"  # all old pods go first


@dataclass(frozen=True, slots=True)
class Rollout:
    """The strategy of one rollout, and why it was chosen."""

    strategy: RolloutStrategy
    reason: str
    unavailable: int = 1  # pods that may be away at a time, in place


@dataclass(frozen=True, slots=True)
class PodRevision:
    """A finished pod template under the name that its hash gave it."""

    name: str
    template: Manifest


@dataclass(frozen=True, slots=True)
class Rollback:
    """A revision that could not become ready and runs no more, and what was wrong with it."""

    failed: str
    cause: str


@dataclass(frozen=True, slots=True)
class Target:
    """What to run, what to remember as ready, and why it is not what the spec asks for."""

    pods: PodRevision
    last_ready: PodRevision | None = None
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class NodeSupply:
    """Devices of one resource on one node, as far as one AtomDeployment's pods are concerned."""

    name: str
    allocatable: int
    requested: int  # by every pod on the node, ours included
    ours: int  # pods of this AtomDeployment there that a rollout would replace
    blockers: tuple[str, ...] = ()  # why no pod of ours may go there, whatever is free
    unhealthy: int = 0  # devices that the node has and nobody is given

    @property
    def free(self) -> int:
        return max(0, self.allocatable - self.requested)


@dataclass(frozen=True, slots=True)
class Supply:
    """Where `demand` devices of `resource` for one pod could come from."""

    resource: str
    demand: int
    nodes: tuple[NodeSupply, ...]
    released: int = 0  # devices that one running pod of ours gives back when it goes
    leaving: int = 0  # pods of ours that end and still hold devices
    pods_per_replica: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the children of one AtomDeployment."""

    key: ObjectKey
    uid: str
    replicas: int
    model: ModelLocation
    engine: EngineOptions
    accelerator: Accelerator
    facts: ModelFacts | None
    capacity: CapacityVerdict
    rollout: Rollout
    startup_budget_seconds: int
    progress_deadline_seconds: int  # of a rollout without any progress
    template: Mapping[str, Any] | None
    learning_key: str = ""  # names the kind of engine that evidence is about
    learned: tuple[Evidence, ...] = ()  # kept for the next plans
    integrations: Integrations = field(default_factory=Integrations)
    owns_replicas: bool = True  # False: an autoscaler moves the number, and we leave it alone
    inspected: InspectedConfig | None = None  # kept, so that it is looked at once

    @property
    def may_start(self) -> bool:
        """Unknown starts: the engine sizes itself. Only a sure misfit is held back."""
        return self.capacity.fits != "False"


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """The Deployment as its controller reports it."""

    desired: int
    replicas: int
    updated: int
    ready: int
    available: int
    up_to_date: bool  # its controller has seen the latest spec
    revision: str | None
    stalled_message: str | None  # no progress within the deadline
    refused_message: str | None  # pods cannot be created: quota, admission
    rollout: Rollout | None = None  # the strategy that is in effect
    rollback: Rollback | None = None  # why it does not run what the spec asks for
    startup_budget_seconds: int | None = None  # of the revision that it runs

    @property
    def complete(self) -> bool:
        """Every wanted pod is of the latest revision and available, and no other is left."""
        counts = {self.updated, self.replicas, self.available}
        return self.up_to_date and counts == {self.desired}


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod, reduced to what conditions need."""

    name: str
    ready: bool
    scheduled: bool
    unschedulable_message: str | None
    problem: str | None  # last termination or waiting reason of a container that is not ready
    address: str | None = None  # of the engine's HTTP server
    revision: str | None = None  # of its pod template
    restarts: int = 0  # of the container that was restarted most
    ready_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a start-up or a download is. Rates are of its present phase."""

    phase: str
    fraction: float
    bytes_total: int | None = None
    bytes_per_second: int | None = None
    seconds_without_progress: float = 0.0
    stalled: bool = False  # by the rules of whoever reports it


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What /health answers. `state` is ok, starting, draining or dead; `reason` is for people."""

    state: str
    reason: str
    progress: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The capacity that the engine of one revision reported."""

    revision: str
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the engines themselves say; empty where none answers."""

    measured: Measured | None = None
    not_serving: tuple[tuple[str, EngineHealth], ...] = ()  # by pod, in the order of their names

    @property
    def words(self) -> str:
        """What the first engine that does not serve says of itself, if any says anything."""
        return next((f"{health.state}: {health.reason}" for _, health in self.not_serving), "")

    def of(self, revision: str | None) -> EngineView:
        """The same without a measurement that belongs to another revision."""
        if self.measured is None or self.measured.revision == revision:
            return self
        return replace(self, measured=None)


@dataclass(frozen=True, slots=True)
class Observed:
    """What exists: owned children as manifests, and the typed parts of Deployment and pods."""

    children: Mapping[ChildKey, Manifest]
    deployment: DeploymentState | None  # of the Deployment or LeaderWorkerSet
    pods: tuple[PodState, ...]
    running: PodRevision | None = None  # what the Deployment asks for now
    last_ready: PodRevision | None = None  # what every replica served with most lately
    learned: tuple[Evidence, ...] = ()
    leaving: int = 0  # pods that end and may still hold devices
    unserved: frozenset[Kind] = frozenset()  # optional kinds that were looked for in vain
    inspected: InspectedConfig | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server (or we) refused a child: permanent until something changes."""

    child: ChildKey
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What one apply changed."""

    applied: tuple[ChildKey, ...] = ()
    pruned: tuple[ChildKey, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_optional: tuple[Refusal, ...] = ()  # serving goes on without these
