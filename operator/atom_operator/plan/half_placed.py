"""Groups of pods that have some of their nodes and wait for the others, and which one gives back.

Pure. Neither of two such groups can begin while each holds what the other needs, so one gives its
pods back: the one of lower priority, then of an older revision, then the younger one. A group that
serves or that loads never does, nor one whose pods a quota holds back. Called by
reconcile/nodes/group_places.py, which evicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from atom_operator import constants
from atom_operator.domain import ObjectKey, Observed, PodState
from atom_operator.plan.rollouts.own_pods import replicas_of


@dataclass(frozen=True, slots=True)
class HalfPlacedGroup:
    """Describe one group: its leader, what it holds, what it lacks, and its turn."""

    key: ObjectKey
    leader: PodState
    names: tuple[str, ...]  # of its pods
    placed: int  # pods that have a node
    lacking: int  # pods without one
    since: datetime  # its youngest pod was created
    is_newest: bool  # of the revision that its workload asks for
    devices: tuple[str | None, int]  # that each pod asks for: resource and number

    @property
    def turn(self) -> tuple[int, bool, float, int, str]:
        """Order groups: the first one keeps its pods longest."""
        age = self.since.timestamp()
        index = self.leader.group_number or 0
        return (-self.leader.placement.priority, not self.is_newest, age, index, self.leader.name)


def half_placed(key: ObjectKey, observed: Observed) -> tuple[HalfPlacedGroup, ...]:
    """Return the half-placed groups of one AtomDeployment."""
    running = observed.deployment
    if running is None or not running.in_groups or observed.leaving:
        return ()
    silent = {pod.name for pod in observed.silent}
    found = (_half(key, group, running.revision) for group in replicas_of(observed.pods))
    return tuple(each for each in found if each is not None and each.leader.name not in silent)


def _half(
    key: ObjectKey, group: Iterable[PodState], revision: str | None
) -> HalfPlacedGroup | None:
    pods = list(group)
    leaders = [pod for pod in pods if pod.role == constants.ROLE_LEADER]
    waiting = [pod for pod in pods if not pod.placement.scheduled]
    placed, times = len(pods) - len(waiting), [pod.created_at for pod in pods if pod.created_at]
    if len(leaders) != 1 or leaders[0].ready or not placed or not waiting or not times:
        return None
    if any(pod.placement.gated or not pod.placement.unschedulable_message for pod in waiting):
        return None
    leader, resource = leaders[0], leaders[0].devices.resource
    count = (leader.placement.charged or {}).get(f"requests.{resource}", 0) if resource else 0
    return HalfPlacedGroup(
        key=key,
        leader=leader,
        names=tuple(pod.name for pod in pods),
        placed=placed,
        lacking=len(waiting),
        since=max(times),
        is_newest=leader.revision == revision,
        devices=(resource, count),
    )


def giving_back(groups: Iterable[HalfPlacedGroup]) -> HalfPlacedGroup | None:
    """Return the group that gives its pods back; None if no other group would be whole by them."""
    ordered = sorted(groups, key=lambda group: group.turn)
    for place in range(len(ordered) - 1, 0, -1):
        last = ordered[place]
        if any(_completes(ordered[:place], place_of, last) for place_of in range(place)):
            return last
    return None


def _completes(keeping: list[HalfPlacedGroup], index: int, last: HalfPlacedGroup) -> bool:
    """Return whether the pods of `last`, with those of the groups between, would make one whole."""
    first = keeping[index]
    likes = [group for group in (*keeping[index + 1 :], last) if _is_like(group, first)]
    return last in likes and sum(group.placed for group in likes) >= first.lacking


def _is_like(group: HalfPlacedGroup, first: HalfPlacedGroup) -> bool:
    """Return whether a pod of `group` holds the devices that one of `first` needs."""
    return group.devices[0] == first.devices[0] and group.devices[1] >= first.devices[1]
