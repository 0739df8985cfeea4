"""Which old pods go while new ones wait for resources that these hold, on nodes or in quotas. Pure.

Called by the choice of a rollout while old pods are left. An old pod never goes for a new one that
no node or quota could take.
"""

from __future__ import annotations

import re

from atom_operator.domain import DeploymentState, Rollout, RolloutStrategy
from atom_operator.plan.quota import QuotaRefusal
from atom_operator.plan.rollouts.fewer_replicas import most_away, widened
from atom_operator.plan.rollouts.question import RolloutQuestion
from atom_operator.plan.rollouts.without_spare import finds_a_node, for_several, without_spare
from atom_operator.plan.room import can_take_one

_SURGE, _IN_PLACE = RolloutStrategy.SURGE, RolloutStrategy.IN_PLACE
# The scheduler's messages about nodes that other pods fill.
_HELD_BY_PODS = re.compile(
    r"Insufficient |cannot allocate all claims|Too many pods|free ports|anti-affinity"
    r"|ReadWriteOncePod|max volume count|pod affinity rules|topology spread"
)


def make_room(question: RolloutQuestion, running: DeploymentState, current: Rollout) -> Rollout:
    """End old pods if new ones wait for their resources, on nodes or in a quota.

    A new replica that has its nodes and is loading is waited for, however many others have none: so
    at most one more replica is away than had no place before.
    """
    if question.pods.loading:
        return current
    found = current
    if question.pods.unschedulable is not None:
        found = _room_on_nodes(question, running, current)
    # A pod without a node may be an old one, while a quota refuses those that would find one.
    if question.refusals.quota is not None and found == current:
        found = _room_in_quota(question, running, question.refusals.quota)
    return found


def _room_on_nodes(
    question: RolloutQuestion, running: DeploymentState, current: Rollout
) -> Rollout:
    """End old pods that hold the missing resources, since the new pods wait for a node."""
    supply, pods = question.supply, question.pods
    if supply is None:
        if current.strategy is not _SURGE or not _HELD_BY_PODS.search(pods.unschedulable or ""):
            return current
        return Rollout(_IN_PLACE, "the spare pod of a surge found no node, so old pods go first")
    if can_take_one(supply) is not None:
        # A surge of when no node could have taken a new pod: one can now, without the claim.
        held = question.refusals.claim_not_shared
        if held is not None and current.strategy is _SURGE and not pods.leaving:
            return Rollout(_IN_PLACE, held)
        return current  # the missing resource is not counted, and old pods need not hold it
    if pods.leaving > supply.stuck:
        return current  # the place of an old pod comes free yet
    if pods.arrived is not None and supply.arrived > pods.arrived:
        return current  # the waiting pod has found a node since it was observed
    chosen = without_spare(supply)
    if chosen.strategy is not current.strategy:
        return chosen
    return _wider(question, running, current) if chosen.strategy is _IN_PLACE else current


def _room_in_quota(
    question: RolloutQuestion, running: DeploymentState, refusal: QuotaRefusal
) -> Rollout:
    """Let old pods make room in the quota, which has none for more pods, if that would suffice."""
    current, supply, pods = running.notes.rollout, question.supply, question.pods
    assert current is not None
    lost = supply.lost if supply is not None else ()
    ends = any(node not in lost for node in pods.leaving_charged)
    if (ends or question.refusals.quota_is_old) and (
        running.available or current.strategy is _IN_PLACE
    ):
        return current  # there is room, or will be, once the quota stops counting ended pods
    if pods.starting:
        return current  # one that finds no node waits for nodes, and not for the quota
    # Those whose claims are refused are there, and hold nothing that the quota counts.
    old = running.replicas - running.updated - pods.old_unclaimed
    missing = running.desired - running.updated + pods.unclaimed
    # Not all wanted pods need to fit: a new pod for each old one that may serve is no loss.
    if not refusal.has_room_after(old, min(old, missing)):
        return current
    if supply is not None and not finds_a_node(supply):
        return current
    if current.strategy is _IN_PLACE:
        return _wider(question, running, current)
    full = f"quota {refusal.name} has no room for {refusal.lacking}"
    going = next((count for count in range(old + 1) if refusal.has_room_after(count)), None)
    if going is None:
        return current  # no old pod holds a part of it: another AtomDeployment's pods do
    if going == 1:
        return Rollout(_IN_PLACE, f"{full}; a new pod takes the place of an old one")
    enough = f"{full}, and what one old pod gives back is not enough"
    return for_several(going, old, enough)


def _wider(question: RolloutQuestion, running: DeploymentState, current: Rollout) -> Rollout:
    """Let one more pod be away, if the allowed number is away already: the successor of an old pod
    has found its place taken, or never had one, and waits for another.

    Never more than one beyond the replicas without a place: if an old group that never served takes
    half of a freed place, the serving ones do not make up for that.
    """
    # The workload's own count lags its pods, which show when loading has ended.
    serving = max(running.available, question.pods.serving)
    if serving > running.desired - current.unavailable:
        return current  # the Deployment can still stop an old pod by itself
    away = running.desired - serving
    if not question.pods.idle or away <= current.unavailable:
        away = min(running.desired, away + 1)  # those that do not serve go first
    away = min(away, most_away(question, current, running.desired))
    if away <= current.unavailable:
        return current
    return widened(away)


def waits_for(question: RolloutQuestion) -> str | None:
    """Return the resource that the new pods wait for and the old ones may hold."""
    if question.refusals.quota is not None:
        return f"room in quota {question.refusals.quota.name}"
    if question.pods.unschedulable is None or not _HELD_BY_PODS.search(question.pods.unschedulable):
        return None
    return question.wanted.accelerator.resource_name or "memory"
