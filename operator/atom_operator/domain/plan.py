"""Plan: all that rendering sees; equal plans give equal children."""

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
from atom_operator.domain.rollout_state import Rollout
from atom_operator.integration_values import ENGINE_USER_ID, Integrations, ObjectMetadata


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
    template_removed: tuple[str, ...] = ()  # paths that are taken out of the pod template
    profile: Profile | None = None  # that was laid below the spec
    own_account: str | None = None  # the ServiceAccount that the spec names; None: we make one
    pull_secrets: tuple[str, ...] = ()  # of the ServiceAccount that we make
    user_id: int | None = ENGINE_USER_ID  # of the pods' processes; None: the cluster gives them one
    disk_bytes: int | None = None  # of its node that each pod asks for
    disk_is_stated: bool = False  # by the spec, wherever the caches are
    host_bytes: int = 0  # of the node's memory, for adapters and for weights that sleep
    objects: ObjectMetadata = field(default_factory=ObjectMetadata)  # of what is made beside pods
    learning_key: str = ""  # names the kind of engine that evidence is about
    learned: tuple[Evidence, ...] = ()  # kept for the next plans
    integrations: Integrations = field(default_factory=Integrations)
    suspended: bool = False  # no replicas, whatever their number was or an autoscaler asks for
    owns_replicas: bool = True  # False: an autoscaler moves the number, and we leave it alone
    autoscaler_stands: bool = False  # it is there already, whoever owns the number
    inspected: InspectedConfig | None = None  # kept, so that it is looked at once
    spec_digest: str = ""  # of what is asked of the pods
    asked: Mapping[str, Any] = field(default_factory=dict)  # the spec as it was written
    default_image: str | None = None  # the operator's, where the spec names none
    origin: Origin | None = None  # its own spec, and defaults of many below that
    changes_kind: bool = False  # pods of the other kind of workload serve until these are ready
    frontend_serves: bool = False  # pods of it are ready, so that callers are led there
    warnings: tuple[str, ...] = ()  # about what is accepted all the same
    keeps_rendering: bool = False  # pods stay as another version of the operator made them

    canary: Canary | None = None  # beside these pods
    jobs: JobOptions = field(default_factory=JobOptions)
    adapters: tuple[Adapter, ...] = ()  # that pods load and unload as they run

    @property
    def service_account(self) -> str:
        """Name the service account of the pods, and of the Jobs that prepare their model."""
        return self.own_account or self.key.name

    @property
    def is_overlaid(self) -> bool:
        """Return whether pods are not as we render them by ourselves."""
        below = self.profile is not None and self.profile.template is not None
        return below or self.template is not None or bool(self.template_removed)

    @property
    def may_start(self) -> bool:
        """Unknown starts: the engine sizes itself. Only a sure misfit is held back."""
        return self.capacity.fits != "False"
