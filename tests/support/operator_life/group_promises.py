"""What is promised of groups that have a part of their nodes, by the cluster's scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import Manifest
from tests.support.in_memory_cluster.state import condition_of, is_ready
from tests.support.operator_life.groups import group_of, leader_of
from tests.support.operator_life.places import fits
from tests.support.operator_life.promise import promise

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_WAIT_SECONDS = 400.0  # until one of two groups has given its pods back
_GROUP_SIZE = 2


class GroupPromises:
    """Of one life; `hold` raises with the words where something does not hold."""

    def __init__(self, life: Life, hold: Callable[[bool, str], None]) -> None:
        self.life = life
        self._hold = hold
        self.since: float | None = None  # two groups have waited for each other

    @promise("half-placed-groups-give-way")
    def judge_give_back(self, pod: Manifest) -> bool:
        """Whether the operator evicts a pod of a half-placed group, which has to be of use."""
        group = group_of(self.life.state, pod)
        if leader_of(pod) is None or not _is_half(group):
            return False
        halves = self._halves()
        self._hold(len(halves) > 1, f"{pod['metadata']['name']} gives back, and no other waits")
        serves = any(is_ready(one) for one in group if one["metadata"]["name"] == leader_of(pod))
        self._hold(not serves, "a group that serves gives its pods back")
        self._hold(
            self._is_of_use(group), "a group gives back a place that no other group can have"
        )
        self.since = None
        return True

    @promise("half-placed-groups-give-way")
    def judge(self) -> None:
        """A moment is over: no two groups wait for long for what the other has."""
        halves, state = self._halves(), self.life.state
        placed = sum(bool(pod["spec"].get("nodeName")) for group in halves for pod in group)
        waits = len(halves) > 1 and placed >= _GROUP_SIZE and all(map(self._is_of_use, halves))
        if not waits:
            self.since = None
            return
        self.since = state.time if self.since is None else self.since
        state.look_after(self.since + _WAIT_SECONDS + 1 - state.time)
        waited = state.time - self.since
        self._hold(waited <= _WAIT_SECONDS, f"groups wait for each other for {waited:.0f} s")

    def _halves(self) -> list[list[Manifest]]:
        """The half-placed groups of the model and of its canary, which hold each other's nodes."""
        found: dict[str, list[Manifest]] = defaultdict(list)
        for pod in self.life.cluster.pods:
            leader = leader_of(pod) if _model_of(pod) is not None else None
            if leader is not None:
                found[leader].append(pod)
        return [group for group in found.values() if _is_half(group)]

    def _is_of_use(self, group: list[Manifest]) -> bool:
        """Whether a pod of such a group has a place once this one has gone."""
        workload = self.life.workload_of(_model_of(group[0]) or self.life.name)
        return workload is not None and fits(self.life.state, workload, group)


def _model_of(pod: Manifest) -> str | None:
    name: str | None = (pod["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT)
    return name


def _is_half(group: list[Manifest]) -> bool:
    """Whether a group waits for a node beside one that it has, and does not end."""
    placed = [pod for pod in group if pod["spec"].get("nodeName")]
    waiting = [pod for pod in group if not pod["spec"].get("nodeName")]
    ending = any(pod["metadata"].get("deletionTimestamp") for pod in group)
    lacks = [(condition_of(pod, "PodScheduled") or {}).get("reason") for pod in waiting]
    return bool(placed and waiting) and not ending and set(lacks) == {"Unschedulable"}
