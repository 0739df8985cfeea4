"""Everything that a status is made of: one value of each pass, read by the verdicts of its
conditions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_operator.constants import Reason
from atom_operator.domain import (
    ApplyReport,
    CapacityVerdict,
    DeploymentState,
    DeviceFindings,
    EngineView,
    FieldProblem,
    Observed,
    Plan,
    PrefillState,
    Revisions,
    RolloutWait,
    RouteFindings,
)
from atom_operator.domain.canary import Canary
from atom_operator.domain.preparation import Waiting
from atom_operator.pods.prefill_state import prefill_among

_NO_DEPLOYMENT = DeploymentState(0, 0, 0, 0, 0, None)
_NOT_PLANNED = CapacityVerdict("Unknown", Reason.NOT_PLANNED, "the spec is not accepted")


@dataclass(frozen=True, slots=True)
class Subject:
    """Describe the AtomDeployment that a status is of."""

    name: str
    generation: int
    selector: str
    url: str
    suspended: bool = False  # by the spec, even if that is not accepted


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Hold the findings of a pass about nodes, devices and routes."""

    shortage: str | None = None  # why no node takes one more pod, when accelerators are the cause
    routes: RouteFindings = field(default_factory=RouteFindings)
    devices: DeviceFindings = field(default_factory=DeviceFindings)


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Everything that the status is made of. `plan` is None when the spec is not accepted."""

    subject: Subject
    problems: tuple[FieldProblem, ...]
    overlay: tuple[str, ...]
    plan: Plan | None
    report: ApplyReport
    observed: Observed
    engines: EngineView
    surveyed: Surveyed
    waiting: Waiting | None = None  # the preparation before pods are requested
    revisions: Revisions | None = None  # in force, where children are desired

    @property
    def deployment(self) -> DeploymentState:
        return self.observed.deployment or _NO_DEPLOYMENT

    @property
    def run(self) -> Plan | None:
        """Return the plan of the pods that the workload runs."""
        return self.revisions.run.plan if self.revisions else self.plan

    @property
    def serving(self) -> Plan | None:
        """Return the plan of the pods that serve."""
        return self.revisions.serving.plan if self.revisions else self.plan

    @property
    def canary(self) -> Canary | None:
        """Return the canary beside the pods of the spec; None without one."""
        return self.plan.canary if self.plan else None

    @property
    def waits(self) -> RolloutWait | None:
        """Return why the spec's change of the pods comes later."""
        return self.revisions.waits if self.revisions else None

    @property
    def rollout_waits(self) -> str | None:
        """Return why the spec's own change of the pods comes later, or why its pods are refused."""
        waits = self.waits
        if waits is None or waits.is_pair:
            return None
        return waits.told if waits.is_refused or not waits.defaults else None

    @property
    def defaults_wait(self) -> str | None:
        """Return why changed defaults of many come later, if nothing else has changed."""
        waits = self.waits
        return waits.words if waits and waits.defaults and not waits.is_refused else None

    @property
    def prefill(self) -> PrefillState | None:
        """Return the pods that compute prompts for these; None if there are none."""
        return prefill_among(self.observed.children)

    @property
    def is_divided(self) -> bool:
        """Return whether prompts are computed apart, or still are."""
        transfer = self.plan.engine.serving.transfer if self.plan is not None else None
        asked = transfer is not None and not transfer.computes_prompts
        return asked or self.prefill is not None

    @property
    def workloads(self) -> tuple[DeploymentState, ...]:
        """Return the workloads: two while one kind takes over from the other."""
        return tuple(self.observed.workloads.values()) or (self.deployment,)

    @property
    def capacity(self) -> CapacityVerdict:
        return self.plan.capacity if self.plan else _NOT_PLANNED

    @property
    def capacity_in_force(self) -> CapacityVerdict:
        return self.run.capacity if self.run else _NOT_PLANNED

    @property
    def rolled_out(self) -> bool:
        """Return whether every replica has the newest revision, which was ready once: a replica
        that is not ready now is not being rolled out."""
        state, recorded = self.deployment, self.observed.records.last_ready
        counts = {state.updated, state.replicas, state.desired}
        whole = state.progress.up_to_date and len(counts) == 1 and state.notes.rollback is None
        return whole and recorded is not None and recorded.name == state.revision

    @property
    def is_whole(self) -> bool:
        """Return whether no replica is on its way to the newest revision, which may not be the one
        that is asked for: its rollout may wait."""
        return self.deployment.complete or self.rolled_out

    @property
    def held_back(self) -> bool:
        """Return whether the spec's pods are not even asked for."""
        return self.plan is None or not self.plan.capacity.may_start
