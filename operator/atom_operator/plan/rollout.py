"""How pods are replaced when the revision changes: chosen once per rollout, kept until the next.

Pure. A spare pod is best where a device is free for it; where none is, it would stay Pending for
ever and the rollout behind it with it. So the choice is made from the free devices of the exact
resource on eligible nodes, and made again only when the pods it started find no node.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain import Accelerator, DeploymentState, Rollout, RolloutStrategy, Supply
from atom_operator.plan.inventory import can_take_one

_SURGE, _IN_PLACE, _RECREATE = RolloutStrategy


@dataclass(frozen=True, slots=True)
class RolloutQuestion:
    """What the choice depends on. `supply` is None for cpu, and where nodes cannot be read."""

    asked: str  # spec.rollout.strategy
    accelerator: Accelerator
    revision: str  # of the wanted pod template
    running: DeploymentState | None
    unschedulable: bool  # a pod of ours finds no node
    supply: Supply | None


def needs_supply(question: RolloutQuestion) -> bool:
    """Whether the choice will look at the free devices at all."""
    if question.asked != "Auto" or question.accelerator.type == "cpu":
        return False
    return _is_new(question) or question.unschedulable


def choose_rollout(question: RolloutQuestion) -> Rollout:
    """The strategy for this revision, with the reason for status.rollout."""
    running = question.running
    if question.asked != "Auto":
        asked = RolloutStrategy(question.asked)
        return Rollout(asked, f"spec.rollout.strategy is {asked.value}")
    if running is None or running.desired == 0:
        return Rollout(_default(question), "there are no pods to replace yet")
    if _is_new(question) or running.rollout is None:
        return _choose(question)
    if question.unschedulable and not running.complete:
        return _unblock(question, running.rollout)
    return running.rollout


def _is_new(question: RolloutQuestion) -> bool:
    running = question.running
    return running is not None and running.desired > 0 and running.revision != question.revision


def _default(question: RolloutQuestion) -> RolloutStrategy:
    return _SURGE if question.accelerator.type == "cpu" else _IN_PLACE


def _choose(question: RolloutQuestion) -> Rollout:
    if question.accelerator.type == "cpu":
        return Rollout(_SURGE, "a spare pod takes no accelerator")
    supply = question.supply
    if supply is None:
        return Rollout(_IN_PLACE, "nodes cannot be read, so no accelerator is assumed free")
    node = can_take_one(supply)
    if node is not None:
        what = f"{node.free} {supply.resource} free, and a pod needs {supply.demand}"
        return Rollout(_SURGE, f"node {node.name} has {what}")
    return _without_spare(supply)


def _without_spare(supply: Supply) -> Rollout:
    lacking = f"no eligible node has {supply.demand} {supply.resource} free"
    if _one_place_is_enough(supply):
        return Rollout(_IN_PLACE, f"{lacking}; a new pod takes the place of an old one")
    return Rollout(
        _RECREATE,
        f"{lacking}, and the {supply.released} that one old pod gives back are not enough",
    )


def _one_place_is_enough(supply: Supply) -> bool:
    """Whether a new pod fits wherever one old pod goes; the Deployment chooses which one."""
    homes = [node for node in supply.nodes if node.ours]
    if not homes:
        return True  # nothing of ours runs on any node, so nothing of ours is in the way
    return all(not node.blockers and node.free + supply.released >= supply.demand for node in homes)


def _unblock(question: RolloutQuestion, current: Rollout) -> Rollout:
    """The rollout waits for a node: stop waiting behind ourselves, one step at a time."""
    if current.strategy is _SURGE:
        return Rollout(_IN_PLACE, "the spare pod of a surge found no node, so old pods go first")
    supply = question.supply
    if current.strategy is _IN_PLACE and supply is not None and can_take_one(supply) is None:
        return current if _one_place_is_enough(supply) else _without_spare(supply)
    return current
