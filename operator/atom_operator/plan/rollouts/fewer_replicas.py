"""How many pods may be away at a time, and a number of replicas that falls meanwhile. Pure.

The controller of Deployments scales old and new pods by their shares when the number of replicas
changes during a rollout, whichever of them serve
(https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#proportional-scaling). Where
new pods wait for places, that stops old ones that serve. A surge as large as the difference leaves
the shares alone: then the rollout's own rules stop pods, and those keep what serves.
"""

from __future__ import annotations

from dataclasses import replace

from atom_operator.domain import DeploymentState, Rollout, RolloutStrategy
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


def keeps_replicas(question: RolloutQuestion) -> bool:
    """Return whether an autoscaler has to leave the number of replicas as it is: it scales by
    itself, and the controller would scale old and new pods by their shares."""
    running = question.running
    if running is None or not _lacks_several(question, running):
        return False
    return _is_shared(running) or running.revision != question.wanted.revision


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
