"""Plan: all that rendering sees; equal plans give equal children.

A plan is its parts. Renderers and other readers take the parts that they use, so that a signature
states the dependencies of its function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom.sizing import ModelFacts
from atom_operator.domain.canary import Canary
from atom_operator.domain.objects import ObjectKey
from atom_operator.domain.options import (
    Accelerator,
    Adapter,
    EngineOptions,
    JobOptions,
    ModelLocation,
)
from atom_operator.domain.origin import Origin
from atom_operator.domain.profile import Profile
from atom_operator.domain.replica_capacity import CapacityVerdict, Evidence, InspectedConfig
from atom_operator.domain.resources import LimitAsked
from atom_operator.domain.rollout_state import Rollout
from atom_operator.integration_values import ENGINE_USER_ID, Integrations, ObjectMetadata


@dataclass(frozen=True, slots=True)
class Identity:
    """Name the owner of the children, and the account that its pods have.

    own_account: the ServiceAccount that the spec names; None: the operator makes one, which has
    `pull_secrets`. objects: labels and annotations of the children beside the pods.
    """

    key: ObjectKey
    uid: str
    own_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    objects: ObjectMetadata = field(default_factory=ObjectMetadata)

    @property
    def service_account(self) -> str:
        """Name the service account of the pods, and of the Jobs that prepare their model."""
        return self.own_account or self.key.name


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """Record the spec that the plan was made from. digest: of the request for pods; asked: the spec
    as it was written; default_image: the operator's, if the spec names none; origin: the object's
    own spec, and the defaults of many below it; warnings: about an accepted spec."""

    digest: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    default_image: str | None = None
    origin: Origin | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """Keep the measurements of engines for the next plans; `key` names the kind of engine that this
    plan's evidence is about."""

    key: str = ""
    learned: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Locate the model, with its shape. facts: None if the shape is unknown; inspected: the
    config.json that a Job has read, kept so that it is read once; adapters: those that pods load
    and unload while they run; evidence: of the engines that have run it."""

    location: ModelLocation
    facts: ModelFacts | None = None
    inspected: InspectedConfig | None = None
    adapters: tuple[Adapter, ...] = ()
    evidence: EvidencePlan = EvidencePlan()


@dataclass(frozen=True, slots=True)
class PodsPlan:
    """Describe the pods beside the engine's options: the layers over the rendered template, the
    user, disk and memory.

    template_removed: paths that are taken out of the pod template; profile: is laid below the spec;
    user_id: of the pods' processes, None if the cluster assigns one; disk_bytes: of its node that
    each pod requests; disk_is_stated: by the spec, wherever the caches are; host_bytes: memory of
    the node for adapters and for weights that sleep; quota_limits: limits that a ResourceQuota
    of the namespace asks for.
    """

    template: Mapping[str, Any] | None = None
    template_removed: tuple[str, ...] = ()
    profile: Profile | None = None
    user_id: int | None = ENGINE_USER_ID
    disk_bytes: int | None = None
    disk_is_stated: bool = False
    host_bytes: int = 0
    quota_limits: tuple[LimitAsked, ...] = ()
    jobs: JobOptions = field(default_factory=JobOptions)

    @property
    def is_overlaid(self) -> bool:
        """Return whether pods are not as the operator renders them by itself."""
        below = self.profile is not None and self.profile.template is not None
        return below or self.template is not None or bool(self.template_removed)


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Decide the number of replicas, and who moves it.

    suspended: no replicas, whatever their number was or an autoscaler asks for; owns_replicas:
    False if an autoscaler moves the number and the operator leaves it alone; autoscaler_stands: the
    autoscaler exists already, also if the operator owns the number; keeps: why fewer replicas are
    not asked for yet, None if nothing is in the way.
    """

    replicas: int
    suspended: bool = False
    owns_replicas: bool = True
    autoscaler_stands: bool = False
    keeps: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Decide how new pods replace old ones, and how long they may take.

    progress_deadline_seconds: of a rollout without any progress; changes_kind: pods of the other
    kind of workload serve until these are ready; keeps_rendering: pods stay as another version of
    the operator rendered them; frontend_serves: pods of the frontend are ready, so that callers are
    led there.
    """

    chosen: Rollout
    startup_budget_seconds: int
    progress_deadline_seconds: int
    changes_kind: bool = False
    keeps_rendering: bool = False
    frontend_serves: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the children of one AtomDeployment, by part."""

    identity: Identity
    spec: SpecPlan
    model: ModelPlan
    engine: EngineOptions
    accelerator: Accelerator
    pods: PodsPlan
    capacity: CapacityVerdict
    scale: ScalePlan
    rollout: RolloutPlan
    integrations: Integrations = field(default_factory=Integrations)
    canary: Canary | None = None  # beside these pods
