"""How pods are replaced when the revision changes: chosen once per rollout, kept until the next.

Pure. A spare pod is best if there is room for it; otherwise it would stay Pending or refused for
ever, and the rollout with it. So the choice is made from the free amount of every resource on
eligible nodes, and made again only when the rollout waits for resources that its own old pods hold:
devices, memory, host ports, room in a quota. Old pods never go for new ones that no node or quota
could take. Groups of pods have no spare one: LeaderWorkerSet v0.7.0 does not finish a rollout with
a group more (https://github.com/kubernetes-sigs/lws/issues/688).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from atom_operator.domain import (
    Accelerator,
    DeploymentState,
    NodeSupply,
    Observed,
    Rollout,
    RolloutStrategy,
    Supply,
)
from atom_operator.plan.own_pods import OwnPods, replicas_with_a_place
from atom_operator.plan.quota import QuotaRefusal
from atom_operator.plan.room import (
    can_take_one,
    needed_text,
    released_text,
    short_everywhere,
    takes_one,
)

_SURGE, _IN_PLACE, _RECREATE = RolloutStrategy
# The scheduler's messages about nodes that other pods fill.
_HELD_BY_PODS = re.compile(
    r"Insufficient |cannot allocate all claims|Too many pods|free ports|anti-affinity"
    r"|ReadWriteOncePod|max volume count|pod affinity rules|topology spread"
)


_ASKED = "spec.rollout.strategy is "
_AWAY = " may be away at a time, because new ones wait for what old ones hold"
_OTHER_KIND = "the pods are of another kind of workload"
_NO_SPARE_GROUP = "LeaderWorkerSet replaces groups in place: with a spare one it would not finish"


@dataclass(frozen=True, slots=True)
class RolloutQuestion:
    """Hold the inputs of the choice. `supply` is None if nodes cannot be read, and for cpu as long
    as every pod is made and finds a node."""

    asked: str  # spec.rollout.strategy
    accelerator: Accelerator
    revision: str  # of the wanted pod template
    running: DeploymentState | None
    supply: Supply | None
    pods: OwnPods
    replicas: int | None = None  # that the spec asks for; None: an autoscaler owns the number
    claim_not_shared: str | None = None  # a claim that a spare pod could not mount, and why
    in_groups: bool = False  # a replica has several pods
    retiring: DeploymentState | None = None  # the running workload of the other kind
    refusal: QuotaRefusal | None = None  # of pods of the wanted revision, by a ResourceQuota
    refusal_is_old: bool = False  # pods of ours have gone since, and no new one was tried
    inadmissible: str | None = None  # why no new pod would be admitted, even if every old one went


def needs_supply(question: RolloutQuestion) -> bool:
    """Return whether the choice depends on the free amounts of nodes."""
    running = question.running
    if question.asked != "Auto":
        return False
    if question.refusal is not None:
        return True
    if question.accelerator.type == "cpu":
        return False
    if is_changing(question):
        return True
    if running is None or running.desired == 0:
        return False
    return _is_open(question, running) or question.pods.unschedulable is not None


def stops_serving_pods(question: RolloutQuestion, chosen: Rollout) -> bool:
    """Return whether old pods would go before new ones serve, and that was not so chosen before."""
    running = question.running
    if running is None or chosen.strategy is _SURGE:
        return False
    return running.revision != question.revision or not _is_same(chosen, running.rollout)


def _is_same(chosen: Rollout, before: Rollout | None) -> bool:
    """Return whether a choice is the one before, whatever was noted with that."""
    noted = before and replace(chosen, asked_at=before.asked_at, had_place=before.had_place)
    return noted == before and before is not None


def gives_up_first(question: RolloutQuestion, chosen: Rollout) -> bool:
    """Return whether a choice of ours begins to let pods that serve go before new ones have come:
    with the revision, or where a surge was chosen for it before."""
    running = question.running
    if running is None or question.asked != "Auto" or question.in_groups or is_changing(question):
        return False
    surges = running.rollout is not None and running.rollout.strategy is _SURGE
    begins = surges or running.revision != question.revision
    return begins and chosen.strategy is not _SURGE


def choose_rollout(question: RolloutQuestion) -> Rollout:
    """Return the strategy for this revision, with the reason for status.rollout."""
    if question.retiring is not None and is_changing(question):
        return _choose_across_kinds(question, question.retiring)
    chosen = _narrower(question, _choose_for_pods(question))
    if not question.in_groups or chosen.strategy is not _SURGE:
        return chosen
    return Rollout(_IN_PLACE, f"{_asked(question)}{_NO_SPARE_GROUP}")


def is_changing(question: RolloutQuestion) -> bool:
    """Return whether groups of pods take over from single ones, or the other way round, and are not
    all ready yet."""
    return question.retiring is not None and not (question.running and question.running.complete)


def _choose_across_kinds(question: RolloutQuestion, retiring: DeploymentState) -> Rollout:
    """Keep the old workload until its successor serves; end it first if it holds the resources that
    the successor needs."""
    running = question.running
    if question.asked == _RECREATE:
        return Rollout(_RECREATE, f"{_ASKED}{question.asked}")
    if not retiring.ready:
        return Rollout(_RECREATE, f"{_OTHER_KIND}, and none of those before serves")
    if running is not None and running.revision == question.revision:
        waits = _waits_for(question)
        if waits is None:
            return Rollout(_SURGE, f"{_OTHER_KIND}; those before serve until they are ready")
        return Rollout(_RECREATE, f"{_OTHER_KIND}, and wait for {waits} that those before hold")
    supply = question.supply
    if supply is None or can_take_one(supply) is not None:
        return Rollout(_SURGE, f"{_OTHER_KIND}; those before serve until they are ready")
    chosen = _without_spare(supply)
    if chosen.strategy is _SURGE:
        return Rollout(_SURGE, f"{_OTHER_KIND}: {chosen.reason}")
    lacking = f"{_lacking(supply)} beside those before"
    return Rollout(_RECREATE, f"{_OTHER_KIND}, and {lacking}")


def _waits_for(question: RolloutQuestion) -> str | None:
    """Return the resource that the new pods wait for and the old ones may hold."""
    if question.refusal is not None:
        return f"room in quota {question.refusal.name}"
    if question.pods.unschedulable is None or not _HELD_BY_PODS.search(question.pods.unschedulable):
        return None
    return question.accelerator.resource_name or "memory"


def _asked(question: RolloutQuestion) -> str:
    return "" if question.asked == "Auto" else f"{_ASKED}{question.asked}, but "


def _choose_for_pods(question: RolloutQuestion) -> Rollout:
    running = question.running
    if question.asked != "Auto":
        asked = RolloutStrategy(question.asked)
        return Rollout(asked, f"{_ASKED}{asked.value}{_held_up(question, asked)}")
    if running is None or running.desired == 0:
        return Rollout(_default(question), "there are no pods to replace yet")
    if question.inadmissible is not None:
        waiting = "so the old ones serve until one would be admitted"
        return Rollout(_SURGE, f"a new pod would be refused ({question.inadmissible}), {waiting}")
    if running.rollout is None or _is_open(question, running):
        return _choose(question)
    if running.replicas <= running.updated:
        return running.rollout  # no old pod is left
    return _make_room(question, running, running.rollout)


def _held_up(question: RolloutQuestion, asked: RolloutStrategy) -> str:
    """Return why a surge that the spec asks for does not progress. Old pods make no room for it:
    the user has asked that none of them stops before a spare pod is ready."""
    running = question.running
    if asked is not _SURGE or question.in_groups:
        return ""
    if running is None or running.revision != question.revision:
        return ""
    if running.replicas <= running.updated or _waits_for(question) is None:
        return ""
    return (
        ", and there is no room for a spare pod: the old ones serve until there is;"
        " with Auto or InPlace a new pod could take the place of an old one"
    )


def _is_open(question: RolloutQuestion, running: DeploymentState) -> bool:
    """Return whether nothing has been chosen for this revision yet, or not by Auto."""
    if running.rollout is None or running.revision != question.revision:
        return True
    return running.rollout.reason.startswith(_ASKED)


def _default(question: RolloutQuestion) -> RolloutStrategy:
    if question.claim_not_shared is not None:
        return _IN_PLACE
    return _SURGE if question.accelerator.type == "cpu" else _IN_PLACE


def _choose(question: RolloutQuestion) -> Rollout:
    if question.claim_not_shared is not None:
        return Rollout(_IN_PLACE, question.claim_not_shared)
    if question.accelerator.type == "cpu":
        return Rollout(_SURGE, "a spare pod takes no accelerator")
    supply = question.supply
    if supply is None:
        return Rollout(_IN_PLACE, "nodes cannot be read, so no accelerator is assumed free")
    node = can_take_one(supply)
    if node is not None:
        what = f"{node.free} {supply.resource} free, and a pod needs {supply.devices}"
        return Rollout(_SURGE, f"node {node.name} has {what}")
    return _without_spare(supply)


def _lacking(supply: Supply) -> str:
    for node in supply.nodes:
        if node.own_rule is not None and takes_one(node, supply, 1):
            return f"{node.own_rule} keeps a spare pod off node {node.name}"
    return f"no eligible node has {needed_text(supply, short_everywhere(supply))} free"


def _without_spare(supply: Supply) -> Rollout:
    lacking = _lacking(supply)
    homes = [node for node in supply.nodes if node.ours]
    # A home that is lost or cordoned, or has a device less, takes no pod back, even if all went
    # from there; that is no reason to stop all the others.
    going = [count for node in homes if (count := _going_for_one(node, supply)) is not None]
    if not homes or 1 in going:
        return Rollout(_IN_PLACE, f"{lacking}; a new pod takes the place of an old one")
    if going:
        given = released_text(supply, short_everywhere(supply))
        enough = f"{lacking}, and the {given} that one old pod gives back are not enough"
        return _for_several(min(going), sum(node.ours for node in homes), enough)
    waiting = "even if every old pod went, so the old ones serve until a node can take a new one"
    return Rollout(_SURGE, f"{lacking}, {waiting}")


def _going_for_one(node: NodeSupply, supply: Supply) -> int | None:
    """Return how many old pods have to leave a node before it takes a new one, whichever they are;
    None if it takes none even then."""
    counts = range(1, node.ours + 1)
    return next((count for count in counts if takes_one(node, supply, count)), None)


def _for_several(going: int, old: int, why: str) -> Rollout:
    """End `going` old pods for one new pod: all of them only if no fewer would do."""
    if going >= old:
        return Rollout(_RECREATE, why)
    return Rollout(_IN_PLACE, f"{why}: {going} go for a new one", going)


def _finds_a_node(supply: Supply) -> bool:
    """Return whether a new pod would find a node, at the latest when every old one has gone."""
    return can_take_one(supply) is not None or _without_spare(supply).strategy is not _SURGE


def _make_room(question: RolloutQuestion, running: DeploymentState, current: Rollout) -> Rollout:
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
    if question.refusal is not None and found == current:
        found = _room_in_quota(question, running, question.refusal)
    return found


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
    away = min(away, _most_away(question, current, running.desired))
    if away <= current.unavailable:
        return current
    return _widened(away)


def _narrower(question: RolloutQuestion, chosen: Rollout) -> Rollout:
    """Take back a number of pods that may be away if fewer replicas are asked for by now: then
    fewer, or none, are without a place, and the workload would stop serving pods in their stead."""
    running = question.running
    if running is None or chosen.unavailable <= 1 or not chosen.reason.endswith(_AWAY):
        return chosen
    wanted = running.desired if question.replicas is None else question.replicas
    away = max(1, _most_away(question, chosen, wanted))
    if away >= chosen.unavailable:
        return chosen
    return replace(_widened(away), asked_at=chosen.asked_at, had_place=chosen.had_place)


def _most_away(question: RolloutQuestion, rollout: Rollout, replicas: int) -> int:
    """Return how many of the replicas may be away: those without a place, and one more."""
    places = question.pods.places
    if rollout.had_place is not None:
        places = min(places, rollout.had_place)
    return replicas - max(0, places - 1)


def _widened(away: int) -> Rollout:
    number = "1 pod" if away == 1 else f"{away} pods"
    return Rollout(_IN_PLACE, f"{number}{_AWAY}", away)


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
        held = question.claim_not_shared
        if held is not None and current.strategy is _SURGE and not pods.leaving:
            return Rollout(_IN_PLACE, held)
        return current  # the missing resource is not counted, and old pods need not hold it
    if pods.leaving > supply.stuck:
        return current  # the place of an old pod comes free yet
    if pods.arrived is not None and supply.arrived > pods.arrived:
        return current  # the waiting pod has found a node since it was observed
    chosen = _without_spare(supply)
    if chosen.strategy is not current.strategy:
        return chosen
    return _wider(question, running, current) if chosen.strategy is _IN_PLACE else current


def _room_in_quota(
    question: RolloutQuestion, running: DeploymentState, refusal: QuotaRefusal
) -> Rollout:
    """Let old pods make room in the quota, which has none for more pods, if that would suffice."""
    current, supply, pods = running.rollout, question.supply, question.pods
    assert current is not None
    lost = supply.lost if supply is not None else ()
    ends = any(node not in lost for node in pods.leaving_charged)
    if (ends or question.refusal_is_old) and (running.available or current.strategy is _IN_PLACE):
        return current  # there is room, or will be, once the quota stops counting ended pods
    if pods.starting:
        return current  # one that finds no node waits for nodes, and not for the quota
    # Those whose claims are refused are there, and hold nothing that the quota counts.
    old = running.replicas - running.updated - pods.old_unclaimed
    missing = running.desired - running.updated + pods.unclaimed
    # Not all wanted pods need to fit: a new pod for each old one that may serve is no loss.
    if not refusal.has_room_after(old, min(old, missing)):
        return current
    if supply is not None and not _finds_a_node(supply):
        return current
    if current.strategy is _IN_PLACE:
        return _wider(question, running, current)
    full = f"quota {refusal.name} has no room for {refusal.lacking}"
    going = next(count for count in range(old + 1) if refusal.has_room_after(count))
    if going == 1:
        return Rollout(_IN_PLACE, f"{full}; a new pod takes the place of an old one")
    enough = f"{full}, and what one old pod gives back is not enough"
    return _for_several(going, old, enough)


def begun(
    chosen: Rollout, question: RolloutQuestion, observed: Observed, pods_per_replica: int
) -> Rollout:
    """Return the rollout with facts from its revision's first request: the time, for groups, and
    the number of replicas that had a place."""
    running = question.running
    before = running.rollout if running and running.revision == question.revision else None
    asked_at, had_place = (before.asked_at, before.had_place) if before else (None, None)
    if had_place is None:
        had_place = replicas_with_a_place(observed, pods_per_replica)
        had_place = max(had_place, _had_place_before(question))
    asked_at = (asked_at or observed.at) if question.in_groups else None
    return replace(chosen, asked_at=asked_at, had_place=had_place)


def _had_place_before(question: RolloutQuestion) -> int:
    """Count the replicas that had a place when a rollout began that this one cuts short, as far as
    there is room for them: some of them are halves of groups now."""
    running = question.running
    if running is None or running.rollout is None or running.replicas <= running.updated:
        return 0
    return min(running.rollout.had_place or 0, running.desired, question.pods.places)
