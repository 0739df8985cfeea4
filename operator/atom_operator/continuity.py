"""What must not change because we have learnt something: the pods that run, and what they are
compared with. Pure; called by the reconciler between planning and rendering.
"""

from __future__ import annotations

from dataclasses import replace

from atom_operator.children.workload import pod_revision
from atom_operator.domain import CapacityVerdict, Observed, Plan, PodRevision


def without_own_evidence(verdict: CapacityVerdict, wanted: PodRevision) -> CapacityVerdict:
    """A revision is compared with the plan that it was started by: what it taught is for the
    next."""
    evidence, before = verdict.evidence, verdict.uncorrected
    if evidence is None or evidence.revision != wanted.name or before is None:
        return verdict
    return verdict if before.capacity is None else before


def is_in_place(observed: Observed, wanted: PodRevision) -> bool:
    """Whether these pods were already asked for: then what they need was there before."""
    running = observed.deployment
    if running is None:
        return False
    failed = running.rollback.failed if running.rollback else None
    return wanted.name in (running.revision, failed)


def with_budget_of(observed: Observed, plan: Plan, wanted: PodRevision) -> tuple[Plan, PodRevision]:
    """Keep the running pods' start-up budget when nothing else differs: a better estimate is for
    the next rollout, and no reason for one."""
    running = observed.deployment
    if running is None or running.startup_budget_seconds is None or is_in_place(observed, wanted):
        return plan, wanted
    same = replace(plan, startup_budget_seconds=running.startup_budget_seconds)
    pods = pod_revision(same)
    return (same, pods) if is_in_place(observed, pods) else (plan, wanted)
