"""How many pods may be away at a time, and a number of replicas that falls meanwhile. Pure.

The controller of Deployments scales old and new pods by their shares when the number of replicas
changes during a rollout, whichever of them serve
(https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#proportional-scaling). Where
new pods wait for places, that stops old ones that serve. A surge as large as the difference leaves
the shares alone: then the rollout's own rules stop pods, and those keep what serves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom_operator.domain import DeploymentState, Observed, Rollout, RolloutStrategy
from atom_operator.plan.rollouts.question import RolloutQuestion

_AWAY = " may be away at a time, because new ones wait for what old ones hold"


def narrower(question: RolloutQuestion, chosen: Rollout) -> Rollout:
    """Take back a number of pods that may be away if fewer replicas are asked for by now: then
    fewer, or none, are without a place, and the workload would stop serving pods in their stead."""
    running = question.running
    if running is None or chosen.unavailable <= 1 or not chosen.reason.endswith(_AWAY):
        return chosen
    wanted = running.desired if question.wanted.replicas is None else question.wanted.replicas
    away = max(1, most_away(question, chosen, wanted))
    if away >= chosen.unavailable:
        return chosen
    return replace(widened(away), asked_at=chosen.asked_at, had_place=chosen.had_place)


def without_share(question: RolloutQuestion, chosen: Rollout) -> Rollout:
    """Give the rollout as many surplus pods as fewer replicas are asked for than the workload has
    by now, until its controller has seen the smaller number; none if at most one is away."""
    running, wanted = question.running, question.wanted
    surplus = 0
    if running is not None and wanted.replicas is not None:
        before = running.notes.rollout.surplus if running.notes.rollout is not None else 0
        fewer = running.desired - wanted.replicas
        if fewer > 0 and _is_shared(running) and _lacks_several(question, running):
            surplus = fewer + before
        elif fewer == 0 and not running.progress.up_to_date:
            surplus = before
    return chosen if surplus == chosen.surplus else replace(chosen, surplus=surplus)


def kept_replicas(question: RolloutQuestion, chosen: Rollout, observed: Observed) -> int:
    """Return the number of replicas below which an autoscaler may not go: it scales by itself, and
    the controller would scale old and new pods by their shares. 0: any."""
    running = question.running
    if running is None or not _lacks_several(question, running):
        return 0
    if not _is_shared(running) and running.revision == question.wanted.revision:
        return 0
    parts = _parts(running, question.wanted.revision, observed)
    before = running.notes.rollout
    # Without a spare pod the rollout's own rule stops more old ones as soon as fewer are asked for.
    surges = before is not None and before.strategy is chosen.strategy is RolloutStrategy.SURGE
    if not surges or parts is None:
        return running.desired
    fewest = running.desired
    while fewest > 1 and _keeps_serving(parts, running.desired, fewest - 1):
        fewest -= 1
    return fewest


@dataclass(frozen=True, slots=True)
class _Part:
    """The pods of one ReplicaSet."""

    size: int
    serving: int


def _parts(running: DeploymentState, revision: str, observed: Observed) -> tuple[_Part, ...] | None:
    """Return the pods of the two revisions that share the replicas, the new one last; None if these
    are not two, or if not all of their pods are there."""
    old = {pod.revision for pod in observed.pods} - {revision}
    sizes = (running.replicas - running.updated, running.updated)
    pods = [[p for p in observed.pods if p.revision == name] for name in (*old, revision)]
    if running.revision != revision or tuple(map(len, pods)) != sizes:
        return None
    return tuple(_Part(len(each), sum(pod.ready for pod in each)) for each in pods)


def _keeps_serving(parts: tuple[_Part, ...], desired: int, fewer: int) -> bool:
    """Return whether as many pods serve after the controller has shared out fewer replicas as then
    may. Of each revision those that do not serve go first. A ReplicaSet remembers the most pods
    from when it was last scaled, with a spare one or without."""
    need = min(fewer, sum(part.serving for part in parts))
    return all(
        sum(map(min, _shared(parts, most, fewer + 1), (part.serving for part in parts))) >= need
        for most in (desired, desired + 1)
    )


def _shared(parts: tuple[_Part, ...], most: int, allowed: int) -> list[int]:
    """Return the sizes after proportional scaling: the largest first, then the oldest."""
    sizes = [part.size for part in parts]
    left = min(0, allowed - sum(sizes))
    order = sorted(range(len(parts)), key=lambda number: -sizes[number])
    for number in order:
        share = (2 * sizes[number] * allowed + most) // (2 * most) - sizes[number]
        change = max(min(share, 0), left)
        left -= change
        sizes[number] += change
    sizes[order[0]] = max(0, sizes[order[0]] + left)
    return sizes


def _is_shared(running: DeploymentState) -> bool:
    """Return whether pods of several revisions share the replicas."""
    return running.replicas > running.updated


def _lacks_several(question: RolloutQuestion, running: DeploymentState) -> bool:
    """Return whether more than one replica of a Deployment does not serve. Of groups the last ones
    go, and these are the new ones."""
    serving = max(running.available, question.pods.serving)
    return not question.wanted.in_groups and running.desired - serving > 1


def most_away(question: RolloutQuestion, rollout: Rollout, replicas: int) -> int:
    """Return how many of the replicas may be away: those without a place, and one more."""
    places = question.pods.places
    if rollout.had_place is not None:
        places = min(places, rollout.had_place)
    return replicas - max(0, places - 1)


def widened(away: int) -> Rollout:
    number = "1 pod" if away == 1 else f"{away} pods"
    return Rollout(RolloutStrategy.IN_PLACE, f"{number}{_AWAY}", away)
