"""The condition Scheduled: whether every pod has a node, else what the scheduler lacks."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain.observed import Observed, PodState
from atom_operator.status.conditions import Verdict
from atom_operator.status.inputs import StatusInputs

# The scheduler's words about a resource, as it names it, and about what keeps pods off nodes.
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
_BLOCKS = re.compile(r"untolerated taint|were unschedulable|affinity|topology spread|Too many pods")


def scheduled(situation: StatusInputs) -> Verdict:
    """Report the pods without a node, and why some have no ResourceClaim, which no scheduler
    says."""
    found, unclaimed = _placed(situation), situation.observed.refused.unclaimed
    return found if unclaimed is None else replace(found, message=f"{found.message}; {unclaimed}")


def _placed(situation: StatusInputs) -> Verdict:
    kind, observed = ConditionType.SCHEDULED, situation.observed
    waiting = situation.waiting
    if not observed.pods and waiting is not None and waiting.unschedulable:
        return Verdict(kind, "False", Reason.UNSCHEDULABLE, waiting.unschedulable)
    if not observed.pods:
        return Verdict(kind, "Unknown", Reason.NO_PODS, "there are no pods to schedule")
    for pod in observed.pods:
        if (
            pod.placement.unschedulable_message
            and situation.surveyed.shortage
            and not pod.placement.gated
        ):
            shortage, words = situation.surveyed.shortage, pod.placement.unschedulable_message
            message = f"pod {pod.name}: {shortage}{_waits_beside(shortage, words)}"
            return Verdict(kind, "False", Reason.INSUFFICIENT_ACCELERATORS, message)
        if pod.placement.unschedulable_message:
            return Verdict(kind, "False", Reason.UNSCHEDULABLE, _waits_of_revisions(pod, observed))
    pending = sum(not pod.placement.scheduled for pod in observed.pods)
    if pending:
        message = f"pods without a node: {pending}"
        return Verdict(kind, "Unknown", Reason.PODS_PENDING, message)
    return Verdict(kind, "True", Reason.ALL_PODS_SCHEDULED, "every pod has a node")


def _waits_beside(shortage: str, words: str) -> str:
    """Return the scheduler's words if they name a cause that a shortage of devices does not: once
    the devices are back, the pod still waits for that."""
    untold = any(resource not in shortage for resource in _INSUFFICIENT.findall(words))
    # Where no node has devices, the shortage has no account of the nodes and of their blockers.
    accounts = "free: " in shortage or "blocked: " in shortage
    return f"; {words}" if untold or (not accounts and _BLOCKS.search(words)) else ""


def _waits_of_revisions(first: PodState, observed: Observed) -> str:
    """Return the scheduler's words about a pod, and about the first one of another revision that
    waits for something else."""
    message = first.placement.unschedulable_message
    others = (
        pod
        for pod in observed.pods
        if pod.revision != first.revision
        and pod.placement.unschedulable_message not in (None, message)
    )
    told = [first, *itertools.islice(others, 1)]
    return "; ".join(f"pod {pod.name}: {pod.placement.unschedulable_message}" for pod in told)
