"""Protects running pods from changes that come only from new knowledge or new rendering. Pure;
called by the reconciler between planning and rendering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atom_operator.children.engine_pod.quota_limits import quota_limits_of
from atom_operator.children.workload import pod_revision
from atom_operator.constants import ENGINE_CONTAINER
from atom_operator.domain import CapacityVerdict, Observed, PodRevision, RevisionInForce
from atom_operator.domain.resources import EPHEMERAL_STORAGE, LimitAsked, amount
from atom_operator.plan.quota import limits_asked


def without_own_evidence(verdict: CapacityVerdict, wanted: PodRevision) -> CapacityVerdict:
    """Return the verdict without the revision's own evidence: a revision is compared with the plan
    that it was started by, and its measurements are for the next one."""
    evidence, before = verdict.evidence, verdict.uncorrected
    if evidence is None or evidence.revision != wanted.name or before is None:
        return verdict
    return verdict if before.capacity is None else before


def is_in_place(observed: Observed, wanted: PodRevision) -> bool:
    """Return whether the workload already requests these pods: then the objects they need existed
    before."""
    running = observed.deployment
    if running is None:
        return False
    failed = running.notes.rollback.failed if running.notes.rollback else None
    return wanted.name in (running.revision, failed)


def with_quota_limits(observed: Observed, asked: RevisionInForce) -> RevisionInForce:
    """Set the limits that a ResourceQuota counts: those that the running pods have for it, and
    those that its refusal of new pods names. Serving pods are not replaced for a quota that was
    created later."""
    stated = quota_limits_of(observed.records.running.template) if observed.records.running else ()
    kept = limited(asked, stated)
    running = observed.deployment
    named = limits_asked(running.progress.refused_message if running else None)
    if not named or (is_in_place(observed, kept.pods) and _serves(observed)):
        return kept
    return limited(kept, named)


def limited(asked: RevisionInForce, limits: Iterable[LimitAsked]) -> RevisionInForce:
    """Return the revision whose pods state these limits too."""
    plan = asked.plan
    both = tuple(dict.fromkeys((*plan.pods.quota_limits, *limits)))
    if both == plan.pods.quota_limits:
        return asked
    plan = replace(plan, pods=replace(plan.pods, quota_limits=both))
    return RevisionInForce(pod_revision(plan), plan)


def _serves(observed: Observed) -> bool:
    """Return whether a pod of the revision that the workload asks for is ready."""
    running = observed.deployment
    name = running.revision if running is not None else None
    return any(pod.ready and pod.revision == name for pod in observed.pods)


def with_budget_of(observed: Observed, asked: RevisionInForce) -> RevisionInForce:
    """Keep the running pods' start-up budget and disk when nothing else differs: a better estimate
    is for the next rollout, and no reason for one."""
    running, plan = observed.deployment, asked.plan
    if running is None or running.notes.startup_budget_seconds is None:
        return asked
    if is_in_place(observed, asked.pods):
        return asked
    for disk in dict.fromkeys((plan.pods.disk_bytes, _disk_of(observed.records.running))):
        rollout = replace(plan.rollout, startup_budget_seconds=running.notes.startup_budget_seconds)
        same = replace(plan, rollout=rollout, pods=replace(plan.pods, disk_bytes=disk))
        pods = pod_revision(same)
        if is_in_place(observed, pods):
            return RevisionInForce(pods, same)
    return asked


def _disk_of(pods: PodRevision | None) -> int | None:
    for container in pods.template["spec"]["containers"] if pods else ():
        requests = (container.get("resources") or {}).get("requests") or {}
        if container["name"] == ENGINE_CONTAINER and EPHEMERAL_STORAGE in requests:
            return amount(EPHEMERAL_STORAGE, str(requests[EPHEMERAL_STORAGE]))
    return None


def kept_rendering(
    observed: Observed, asked: RevisionInForce, *, spec_seen: bool, may_roll_back: bool
) -> RevisionInForce:
    """Return the pods that this spec already has, if they have proved that they can serve: another
    version of the operator rendered them otherwise, which is no reason to restart them.

    `asked` is this version's rendering of the spec. `spec_seen`: an operator has reported on this
    very spec, for workloads older than digests of specs.
    """
    plan, fresh = asked.plan, asked.pods
    kept = _kept(observed, fresh, spec_seen=spec_seen, may_roll_back=may_roll_back)
    if kept is None or kept.name == fresh.name:
        return asked
    running = observed.deployment
    budget = (
        running.notes.startup_budget_seconds if running and running.revision == kept.name else None
    )
    rollout = replace(
        plan.rollout,
        keeps_rendering=True,
        startup_budget_seconds=budget or plan.rollout.startup_budget_seconds,
    )
    pods = replace(kept, spec_digest=fresh.spec_digest)
    return RevisionInForce(pods, replace(plan, rollout=rollout))


def _kept(
    observed: Observed, fresh: PodRevision, *, spec_seen: bool, may_roll_back: bool
) -> PodRevision | None:
    running, recorded = observed.deployment, observed.records.last_ready
    if running is None:
        return None
    serves = _serves(observed)
    if not serves and _lacks_limits(recorded or observed.records.running, fresh):
        return None  # a quota refuses them, and would for ever
    if recorded is not None and recorded.spec_digest == fresh.spec_digest:
        return recorded
    before_digests = running.notes.spec_digest is None and spec_seen
    if running.notes.spec_digest != fresh.spec_digest and not before_digests:
        return None
    if running.notes.rollback is not None:
        # Not tried again either: only its name matters, by which it is known to have failed.
        return replace(fresh, name=running.notes.rollback.failed) if may_roll_back else None
    if not serves:
        return None  # nothing serves that a new rendering, which may be the better one, would end
    if recorded is not None and recorded.name == running.revision:
        return recorded
    # The live template may carry a user's edit; the one that matters most is not kept.
    live = observed.records.running
    return live if live is not None and engine_image(live) == engine_image(fresh) else None


def _lacks_limits(kept: PodRevision | None, fresh: PodRevision) -> bool:
    """Return whether fresh pods state limits for a quota that the others do not state."""
    stated = quota_limits_of(kept.template) if kept is not None else ()
    return not set(stated).issuperset(quota_limits_of(fresh.template))


def engine_image(pods: PodRevision) -> str | None:
    """Return the image that these pods serve with."""
    containers = pods.template["spec"]["containers"]
    return next(
        (item.get("image") for item in containers if item["name"] == ENGINE_CONTAINER), None
    )
