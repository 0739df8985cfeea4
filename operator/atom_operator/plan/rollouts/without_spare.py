"""How many old pods go for a new one if no node has room for a spare pod. Pure."""

from __future__ import annotations

from atom_operator.domain import NodeSupply, Rollout, RolloutStrategy, Supply
from atom_operator.plan.room import (
    can_take_one,
    needed_text,
    released_text,
    short_everywhere,
    takes_one,
)

_SURGE, _IN_PLACE, _RECREATE = RolloutStrategy


def lacking(supply: Supply) -> str:
    for node in supply.nodes:
        if node.own_rule is not None and takes_one(node, supply, 1):
            return f"{node.own_rule} keeps a spare pod off node {node.name}"
    return f"no eligible node has {needed_text(supply, short_everywhere(supply))} free"


def without_spare(supply: Supply) -> Rollout:
    lacks = lacking(supply)
    homes = [node for node in supply.nodes if node.ours]
    # A home that is lost or cordoned, or has a device less, takes no pod back, even if all went
    # from there; that is no reason to stop all the others.
    going = [count for node in homes if (count := _going_for_one(node, supply)) is not None]
    elsewhere = [node.rule_holders for node in supply.nodes if _is_kept_by_rule(node, supply)]
    if not homes or 1 in (*going, *elsewhere):
        return Rollout(_IN_PLACE, f"{lacks}; a new pod takes the place of an old one")
    if elsewhere and not going:
        return Rollout(_RECREATE, f"{lacks} until every old pod has gone")
    if going:
        given = released_text(supply, short_everywhere(supply))
        enough = f"{lacks}, and the {given} that one old pod gives back are not enough"
        return for_several(min(going), sum(node.ours for node in homes), enough)
    waiting = "even if every old pod went, so the old ones serve until a node can take a new one"
    return Rollout(_SURGE, f"{lacks}, {waiting}")


def _going_for_one(node: NodeSupply, supply: Supply) -> int | None:
    """Return how many old pods have to leave a node before it takes a new one, whichever they are;
    None if it takes none even then."""
    counts = range(1, node.ours + 1)
    return next((count for count in counts if takes_one(node, supply, count)), None)


def _is_kept_by_rule(node: NodeSupply, supply: Supply) -> bool:
    """Return whether only a rule of old pods that are elsewhere keeps a new single pod off."""
    alone = not node.ours and supply.pods_per_replica == 1
    return alone and bool(node.rule_holders) and takes_one(node, supply, node.rule_holders)


def for_several(going: int, old: int, why: str) -> Rollout:
    """End `going` old pods for one new pod: all of them only if no fewer would do."""
    if going >= old:
        return Rollout(_RECREATE, why)
    return Rollout(_IN_PLACE, f"{why}: {going} go for a new one", going)


def finds_a_node(supply: Supply) -> bool:
    """Return whether a new pod would find a node, at the latest when every old one has gone."""
    return can_take_one(supply) is not None or without_spare(supply).strategy is not _SURGE
