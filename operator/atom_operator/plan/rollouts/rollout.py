"""How pods are replaced when the revision changes: chosen once per rollout, kept until the next.

Pure. A spare pod is best if there is room for it; otherwise it would stay Pending or refused for
ever, and the rollout with it. So the choice is made from the free amount of every resource on
eligible nodes, and made again only when the rollout waits for resources that its own old pods hold:
devices, memory, host ports, room in a quota. Old pods never go for new ones that no node or quota
could take. Groups of pods have no spare one: LeaderWorkerSet v0.7.0 does not finish a rollout with
a group more (https://github.com/kubernetes-sigs/lws/issues/688).
"""

from __future__ import annotations

from dataclasses import replace

from atom_operator.domain import DeploymentState, Observed, Rollout, RolloutStrategy
from atom_operator.plan.rollouts.fewer_replicas import narrower, without_share
from atom_operator.plan.rollouts.make_room import make_room, waits_for
from atom_operator.plan.rollouts.own_pods import replicas_with_a_place
from atom_operator.plan.rollouts.question import RolloutQuestion
from atom_operator.plan.rollouts.without_spare import lacking, without_spare
from atom_operator.plan.room import can_take_one

_SURGE, _IN_PLACE, _RECREATE = RolloutStrategy

_ASKED = "spec.rollout.strategy is "
_OTHER_KIND = "the pods are of another kind of workload"
_NO_SPARE_GROUP = "LeaderWorkerSet replaces groups in place: with a spare one it would not finish"


def needs_supply(question: RolloutQuestion) -> bool:
    """Return whether the choice depends on the free amounts of nodes."""
    running = question.running
    if question.wanted.strategy != "Auto":
        return False
    if question.refusals.quota is not None:
        return True
    if question.wanted.accelerator.type == "cpu":
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
    return running.revision != question.wanted.revision or not _is_same(
        chosen, running.notes.rollout
    )


def _is_same(chosen: Rollout, before: Rollout | None) -> bool:
    """Return whether a choice is the one before, whatever was noted with that."""
    noted = before and replace(
        chosen, asked_at=before.asked_at, had_place=before.had_place, surplus=before.surplus
    )
    return noted == before and before is not None


def gives_up_first(question: RolloutQuestion, chosen: Rollout) -> bool:
    """Return whether a choice of ours begins to let pods that serve go before new ones have come:
    with the revision, or where a surge was chosen for it before."""
    running = question.running
    if (
        running is None
        or question.wanted.strategy != "Auto"
        or question.wanted.in_groups
        or is_changing(question)
    ):
        return False
    surges = running.notes.rollout is not None and running.notes.rollout.strategy is _SURGE
    begins = surges or running.revision != question.wanted.revision
    return begins and chosen.strategy is not _SURGE


def choose_rollout(question: RolloutQuestion) -> Rollout:
    """Return the strategy for this revision, with the reason for status.rollout."""
    if question.retiring is not None and is_changing(question):
        return _choose_across_kinds(question, question.retiring)
    chosen = without_share(question, narrower(question, _choose_for_pods(question)))
    if not question.wanted.in_groups or chosen.strategy is not _SURGE:
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
    if question.wanted.strategy == _RECREATE:
        return Rollout(_RECREATE, f"{_ASKED}{question.wanted.strategy}")
    if not retiring.ready:
        return Rollout(_RECREATE, f"{_OTHER_KIND}, and none of those before serves")
    if running is not None and running.revision == question.wanted.revision:
        waits = waits_for(question)
        if waits is None:
            return Rollout(_SURGE, f"{_OTHER_KIND}; those before serve until they are ready")
        return Rollout(_RECREATE, f"{_OTHER_KIND}, and wait for {waits} that those before hold")
    supply = question.supply
    if supply is None or can_take_one(supply) is not None:
        return Rollout(_SURGE, f"{_OTHER_KIND}; those before serve until they are ready")
    chosen = without_spare(supply)
    if chosen.strategy is _SURGE:
        return Rollout(_SURGE, f"{_OTHER_KIND}: {chosen.reason}")
    lacks = f"{lacking(supply)} beside those before"
    return Rollout(_RECREATE, f"{_OTHER_KIND}, and {lacks}")


def _asked(question: RolloutQuestion) -> str:
    return "" if question.wanted.strategy == "Auto" else f"{_ASKED}{question.wanted.strategy}, but "


def _choose_for_pods(question: RolloutQuestion) -> Rollout:
    running = question.running
    if question.wanted.strategy != "Auto":
        asked = RolloutStrategy(question.wanted.strategy)
        return Rollout(asked, f"{_ASKED}{asked.value}{_held_up(question, asked)}")
    if running is None or running.desired == 0:
        return Rollout(_default(question), "there are no pods to replace yet")
    if question.refusals.inadmissible is not None:
        waiting = "so the old ones serve until one would be admitted"
        return Rollout(
            _SURGE, f"a new pod would be refused ({question.refusals.inadmissible}), {waiting}"
        )
    if running.notes.rollout is None or _is_open(question, running):
        return _choose(question)
    if running.replicas <= running.updated:
        return running.notes.rollout  # no old pod is left
    return make_room(question, running, running.notes.rollout)


def _held_up(question: RolloutQuestion, asked: RolloutStrategy) -> str:
    """Return why a surge that the spec asks for does not progress. Old pods make no room for it:
    the user has asked that none of them stops before a spare pod is ready."""
    running = question.running
    if asked is not _SURGE or question.wanted.in_groups:
        return ""
    if running is None or running.revision != question.wanted.revision:
        return ""
    if running.replicas <= running.updated or waits_for(question) is None:
        return ""
    return (
        ", and there is no room for a spare pod: the old ones serve until there is;"
        " with Auto or InPlace a new pod could take the place of an old one"
    )


def _is_open(question: RolloutQuestion, running: DeploymentState) -> bool:
    """Return whether nothing has been chosen for this revision yet, or not by Auto."""
    if running.notes.rollout is None or running.revision != question.wanted.revision:
        return True
    return running.notes.rollout.reason.startswith(_ASKED)


def _default(question: RolloutQuestion) -> RolloutStrategy:
    if question.refusals.claim_not_shared is not None:
        return _IN_PLACE
    return _SURGE if question.wanted.accelerator.type == "cpu" else _IN_PLACE


def _choose(question: RolloutQuestion) -> Rollout:
    if question.refusals.claim_not_shared is not None:
        return Rollout(_IN_PLACE, question.refusals.claim_not_shared)
    if question.wanted.accelerator.type == "cpu":
        return Rollout(_SURGE, "a spare pod takes no accelerator")
    supply = question.supply
    if supply is None:
        return Rollout(_IN_PLACE, "nodes cannot be read, so no accelerator is assumed free")
    node = can_take_one(supply)
    if node is not None:
        what = f"{node.free} {supply.resource} free, and a pod needs {supply.devices}"
        return Rollout(_SURGE, f"node {node.name} has {what}")
    return without_spare(supply)


def begun(
    chosen: Rollout, question: RolloutQuestion, observed: Observed, pods_per_replica: int
) -> Rollout:
    """Return the rollout with facts from its revision's first request: the time, and the number of
    replicas that had a place. An older operator noted the time for groups alone."""
    running = question.running
    before = (
        running.notes.rollout if running and running.revision == question.wanted.revision else None
    )
    asked_at, had_place = (before.asked_at, before.had_place) if before else (None, None)
    if had_place is None:
        had_place = replicas_with_a_place(observed, pods_per_replica)
        had_place = max(had_place, _had_place_before(question))
    if before is None or question.wanted.in_groups:
        asked_at = asked_at or observed.at
    return replace(chosen, asked_at=asked_at, had_place=had_place)


def _had_place_before(question: RolloutQuestion) -> int:
    """Count the replicas that had a place when a rollout began that this one cuts short, as far as
    there is room for them: some of them are halves of groups now."""
    running = question.running
    if running is None or running.notes.rollout is None or running.replicas <= running.updated:
        return 0
    return min(running.notes.rollout.had_place or 0, running.desired, question.pods.places)
