"""Messages of ended pods that explain why their successors are not ready yet. Pure.

The object of a pod that was evicted, or refused by its kubelet, stays until a user or the garbage
collector deletes it. It counts in no number; its message is shown while a replica is missing
because of it, and no longer. Called by the roll-up.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import DeploymentState, EndedPod, Observed, PodState
from atom_operator.status.conditions import Verdict

# The API server and the kubelet write times by different clocks.
_CLOCKS_APART = timedelta(minutes=1)


def ended_verdict(observed: Observed, deployment: DeploymentState) -> Verdict | None:
    """Judge Degraded if ended pods leave replicas missing; None if they explain nothing."""
    if deployment.ready >= deployment.desired:
        return None
    waiting = [pod for pod in observed.pods if not pod.ready]
    causes = [ended for ended in observed.ended if _explains(ended, waiting, observed)]
    if not causes:
        return None
    newest = max(causes, key=lambda ended: (ended.at is not None, ended.at, ended.name))
    more = f" (and {len(causes) - 1} pods before it)" if len(causes) > 1 else ""
    words = newest.message or "its containers ended without an error"
    message = f"pod {newest.name} ended: {words}{more}; its successor is not ready yet"
    return Verdict(ConditionType.DEGRADED, "True", Reason.POD_ENDED, message)


def _explains(ended: EndedPod, waiting: list[PodState], observed: Observed) -> bool:
    """Return whether a replica is missing since this pod ended: once a successor was ready it had
    taken its place, and a later gap has another reason."""
    if not waiting:
        return not _succeeded(ended, observed, None)
    return any(
        not pod.health.was_ready
        and _is_after(pod.created_at, ended.at)
        and not _succeeded(ended, observed, pod.created_at)
        for pod in waiting
    )


def _succeeded(ended: EndedPod, observed: Observed, before: datetime | None) -> bool:
    """Return whether a pod became ready after this one had ended, and before that time."""
    return any(
        pod.health.ready_since is not None
        and (ended.at is None or pod.health.ready_since > ended.at)
        and (before is None or pod.health.ready_since < before)
        for pod in observed.pods
    )


def _is_after(created: datetime | None, ended: datetime | None) -> bool:
    """Return whether the pod may have been made for the place that the ended one left."""
    return created is None or ended is None or created >= ended - _CLOCKS_APART
