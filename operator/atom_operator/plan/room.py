"""Whether nodes have room for one more pod, in every resource that it needs. Pure.

The scheduler decides; this predicts in words which resource is short where, and how that changes
once pods of ours have gone. Called by the choice of a rollout, by the autoscaler's ceiling, and by
messages about nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atom_operator.domain import NodeSupply, Supply
from atom_operator.domain.resources import amount_text, given_back

_NAMED_NODES = 8  # of each sort in a message, which is limited


def short_of(node: NodeSupply, supply: Supply, stopped: int = 0) -> tuple[str, ...]:
    """Return the resources that the node may lack for one more pod once `stopped` pods of ours have
    left it, whichever they are."""
    return tuple(
        name
        for name, needed in supply.demand.items()
        if (free := node.amounts[name].free_after(given_back(node.replaced, name, stopped)))
        is not None
        and free < needed
    )


def takes_one(node: NodeSupply, supply: Supply, stopped: int = 0) -> bool:
    """Return whether a new pod may go there and finds room, once `stopped` pods of ours have left,
    whichever they are."""
    if node.own_rule is not None and not stopped:
        return False
    return not node.blockers and not short_of(node, supply, stopped)


def places(node: NodeSupply, supply: Supply) -> int:
    """Return the number of pods for which the node has room."""
    return min(_counts(node, supply, with_ours=False).values(), default=1)


def places_with_ours(node: NodeSupply, supply: Supply) -> dict[str, int]:
    """Count the pods for which each resource alone would suffice, in the free amount and in our
    pods'."""
    return _counts(node, supply, with_ours=True)


def bounded_by(counts: Mapping[str, int], supply: Supply) -> str | None:
    """Return the resource that leaves a node fewer places than its devices would; None if the
    devices do."""
    name = min(counts, key=lambda each: (counts[each], each != supply.resource), default=None)
    return name if name != supply.resource else None


def _counts(node: NodeSupply, supply: Supply, *, with_ours: bool) -> dict[str, int]:
    return {
        name: max(0, free) // needed
        for name, needed in supply.demand.items()
        if needed
        and (free := node.amounts[name].free_after(node.amounts[name].held if with_ours else 0))
        is not None
    }


def placeable(supply: Supply) -> int:
    """Return the number of replicas for which eligible nodes have room."""
    if supply.resource is not None and not supply.devices:
        return 0
    open_nodes = (node for node in supply.nodes if not node.blockers)
    return sum(places(node, supply) for node in open_nodes) // supply.pods_per_replica


def can_take_one(supply: Supply) -> NodeSupply | None:
    """Return the node with the most free devices that can take one more pod; empty if the nodes
    cannot take every pod of one more replica."""
    candidates = [node for node in supply.nodes if takes_one(node, supply)]
    room = sum(places(node, supply) for node in candidates)
    if room < supply.pods_per_replica and (supply.devices or supply.resource is None):
        return None
    return max(candidates, key=lambda node: node.free, default=None)


def short_everywhere(supply: Supply) -> tuple[str, ...]:
    """Return the resources that every eligible node lacks; if there are none, those that any of
    them lacks."""
    lacks = [set(short_of(node, supply)) for node in supply.nodes if not node.blockers]
    if not lacks:
        return (supply.resource,) if supply.resource else ()
    found = set.intersection(*lacks) or set.union(*lacks)
    return tuple(name for name in supply.demand if name in found)


def needed_text(supply: Supply, names: Iterable[str]) -> str:
    """Describe one pod's need of the named resources."""
    return " and ".join(amount_text(name, supply.demand.get(name, 0)) for name in names)


def released_text(supply: Supply, names: Iterable[str]) -> str:
    """Describe how much of the named resources one old pod gives back, at least."""
    old = [pod for node in supply.nodes for pod in node.replaced]
    return " and ".join(amount_text(name, given_back(old, name, 1)) for name in names)


def lacks_devices(supply: Supply) -> bool:
    """Return whether devices keep one more replica out, or no resource does."""
    names = short_everywhere(supply)
    return supply.resource is not None and (not names or supply.resource in names)


def shortage(supply: Supply) -> str | None:
    """Return why not one more pod finds a node: the free amounts, and the blockers of other
    nodes."""
    if can_take_one(supply) is not None:
        return None
    device = (supply.resource,) if supply.resource is not None else ()
    others = tuple(name for name in short_everywhere(supply) if name not in device)
    each = f"{needed_text(supply, (*device, *others))} on one node"
    pods = supply.pods_per_replica
    wanted = f"a pod needs {each}" if pods == 1 else f"each of {pods} pods needs {each}"
    if supply.lacking is not None:
        return f"{wanted}; {supply.lacking}"
    if not supply.nodes:
        what = "AMD devices" if (supply.resource or "").startswith("amd.com/") else supply.resource
        return f"{wanted}, and no node of the cluster has {what}; is the device plugin running"
    free = [_free(node, others) for node in supply.nodes if not _kept_off_by(node)]
    blocked = [f"{n.name}: {', '.join(found)}" for n in supply.nodes if (found := _kept_off_by(n))]
    parts = [f"free: {_some(free)}"] if free else ["no eligible node"]
    if blocked:
        parts.append(f"blocked: {_some(blocked, '; ')}")
    return f"{wanted}; {'; '.join(parts)}"


def _kept_off_by(node: NodeSupply) -> tuple[str, ...]:
    return (*node.blockers, *((node.own_rule,) if node.own_rule is not None else ()))


def _free(node: NodeSupply, others: Iterable[str]) -> str:
    parts = []
    if node.resource is not None:
        lost = f" ({node.unhealthy} unhealthy)" if node.unhealthy else ""
        parts.append(f"{node.free} of {node.allocatable}{lost}")
    for name in others:
        found = node.amounts[name]
        if found.allocatable is not None:
            free = amount_text(name, found.free or 0)
            parts.append(f"{free} of {amount_text(name, found.allocatable)}")
    return f"{node.name} {' and '.join(parts)}"


def _some(names: list[str], separator: str = ", ") -> str:
    rest = len(names) - _NAMED_NODES
    more = f"{separator}{rest} more" if rest > 0 else ""
    return separator.join(names[:_NAMED_NODES]) + more
