"""Which pods a Deployment should run: those of the spec, or the last that were ready. Pure.

A revision has failed when its rollout made no progress until the deadline, or when a pod of it has
ended so often that time will not help. It is then left alone until the spec asks for other pods,
so nothing flaps. What was ready last is remembered while it runs, before anything replaces it; a
replica that has no place makes no revision unready.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atom_operator.domain import (
    DeploymentState,
    EndedPod,
    Observed,
    PodRevision,
    PodState,
    Rollback,
    Target,
)
from atom_operator.plan.rollouts.group_deadline import tells_cause
from atom_operator.plan.rollouts.own_pods import serves_in_every_place

# With the kubelet's growing pauses this many restarts take about five minutes.
HOPELESS_RESTARTS = 5


def choose_target(
    wanted: PodRevision, observed: Observed, *, may_roll_back: bool, engine_words: str = ""
) -> Target:
    """Choose the revision to run, the wanted one or the last ready one; `engine_words`: the report
    of the engine that does not serve yet, if any."""
    ready = _last_ready(wanted, observed)
    running = observed.deployment
    if not may_roll_back or running is None or ready is None or ready.name == wanted.name:
        return Target(wanted, ready)
    if running.notes.rollback is not None and running.notes.rollback.failed == wanted.name:
        return Target(ready, ready, running.notes.rollback)
    if running.revision != wanted.name:
        return Target(wanted, ready)
    pods = [pod for pod in observed.pods if pod.revision == wanted.name and not pod.ready]
    ended = [pod for pod in observed.ended if pod.revision == wanted.name]
    cause = _failure(running, pods, ended, engine_words)
    return Target(ready, ready, Rollback(wanted.name, cause)) if cause else Target(wanted, ready)


def _last_ready(wanted: PodRevision, observed: Observed) -> PodRevision | None:
    running, recorded = observed.deployment, observed.records.last_ready
    if running is None or not running.desired:
        return recorded
    if not running.complete and not serves_in_every_place(observed):
        return recorded
    # What we rendered, where we still know it: a live object also has the server's defaults.
    if wanted.name == running.revision:
        return wanted
    if recorded is not None and recorded.name == running.revision:
        return recorded
    return observed.records.running or recorded


def _failure(
    running: DeploymentState,
    pods: Iterable[PodState],
    ended: Sequence[EndedPod],
    engine_words: str,
) -> str | None:
    """Return why the revision that runs will not become ready; None while it still may."""
    failing = sorted(pods, key=lambda pod: (pod.health.problem is None, pod.name))
    hopeless = next((pod for pod in failing if pod.health.restarts >= HOPELESS_RESTARTS), None)
    if hopeless is not None and hopeless.health.problem:
        health = hopeless.health
        return f"pod {hopeless.name} was restarted {health.restarts} times: {health.problem}"
    if running.progress.stalled_message is None or not running.progress.up_to_date:
        return None
    said = next((f"pod {pod.name}: {words}" for pod in failing if (words := _words(pod))), None)
    if said is None and running.progress.refused_message is not None and not tells_cause(running):
        said = running.progress.refused_message
    told = [pod for pod in ended if pod.message]
    if said is None and told:
        said = f"pod {told[-1].name} ended: {told[-1].message}"
    if said is None and failing and engine_words:
        said = f"pod {failing[0].name}: {engine_words}"
    return f"no progress within the deadline; {said or running.progress.stalled_message}"


def _words(pod: PodState) -> str | None:
    return pod.health.problem or pod.placement.unschedulable_message
