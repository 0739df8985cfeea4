"""When a rollout has made no progress for too long. Pure; called in every reconcile.

A Deployment's controller keeps its progress deadline. A LeaderWorkerSet has none, and remakes a
group that fails every few seconds for ever, with containers that were never restarted. So the time
is ours: from when the revision was first asked for, or from when a leader of it became ready last.
A revision that was complete once has rolled out: what fails later is no rollout. Nor is one late
that serves in every place that there is: a Deployment's controller counts replicas without one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from atom_operator.domain import DeploymentState, Observed
from atom_operator.plan.rollouts.own_pods import serves_in_every_place


def with_deadline(observed: Observed, now: datetime, known_failure: str | None) -> Observed:
    """Mark the newest workload as stalled if its groups are late, and as not stalled if only
    replicas without a place are missing. known_failure: the latest end of its pods; they may be
    restarting now."""
    if serves_in_every_place(observed) and observed.deployment is not None:
        return replace(observed, deployment=_stalled(observed.deployment, None))
    running, deadline = observed.deployment, progress_deadline(observed)
    if running is None or deadline is None or now < deadline:
        return observed
    message = _late(running)
    if known_failure:
        message = f"{message}: {known_failure}"
    return replace(observed, deployment=_stalled(running, message))


def _stalled(running: DeploymentState, message: str | None) -> DeploymentState:
    return replace(running, progress=replace(running.progress, stalled_message=message))


def tells_cause(running: DeploymentState) -> bool:
    """Return whether the workload's stalled message has the end of a group's pods. What refuses the
    next group then, such as a quota that the ending pods still fill, is a consequence of it."""
    return running.in_groups and running.progress.stalled_message not in (None, _late(running))


def _late(running: DeploymentState) -> str:
    return f"no group became ready within {running.progress.deadline_seconds} s"


def progress_deadline(observed: Observed) -> datetime | None:
    """Return when the newest groups are late; None if they are complete or were, or none are
    wanted."""
    running = observed.deployment
    if running is None or running.notes.rollout is None or running.notes.rollout.asked_at is None:
        return None
    seconds = running.progress.deadline_seconds
    if not seconds or not running.desired or running.complete:
        return None
    if (
        observed.records.last_ready is not None
        and observed.records.last_ready.name == running.revision
    ):
        return None
    leaders = [pod for pod in observed.pods if pod.serves and pod.revision == running.revision]
    ready = [pod.health.ready_since for pod in leaders if pod.health.ready_since is not None]
    return max([running.notes.rollout.asked_at, *ready]) + timedelta(seconds=seconds)
