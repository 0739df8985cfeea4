"""The fewest pods that may serve during a rollout, by what is asked and by what the cluster has.

Takes no bound from the operator or from what it writes: under Auto one fewer may serve than served
before the rollout began, whatever maxUnavailable says. What others take away meanwhile (nodes,
devices, room in quotas) lowers that, asked of the cluster's own admission and scheduler.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.state import is_terminal
from tests.support.operator_life.groups import leader_of
from tests.support.operator_life.places import fits, needs_several, old_pods

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_REVISION = "serving.atom.dev/revision"
_GROUP_SIZE = 2


class RolloutBound:
    """Of one life; asked in every round, so that it knows what served before."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.revision: str | None = None
        self.before = 0  # replicas that served before the rollout, less those that others took
        self.takes_several = False  # a new pod needs the room of several old ones
        self.waiting: frozenset[int] = frozenset()  # numbers of groups without a place

    def fewest(self, workload: Manifest, served: int, taken: int) -> int:
        """How many have to serve after a round before which `served` did, `taken` of which others
        have ended meanwhile."""
        wanted = int(workload["spec"].get("replicas", 1))
        old = old_pods(self.life, workload)
        revision = workload["metadata"]["annotations"][_REVISION]
        if revision != self.revision:
            self.before = max(served, self.before if old and self.revision else 0)
            self.revision, self.takes_several = revision, needs_several(self.life, workload)
        self.before = max(0, self.before - taken)
        self.waiting = frozenset() if old else self._without_a_place(workload)
        if not old:
            self.before = max(0, served - taken)
            return min(self.before, wanted)
        self.before = min(self.before, self._places(workload))
        return min(served - taken, min(self.before, wanted) - self._away(wanted))

    def gives_way(self, workload: Manifest) -> bool:
        """Whether a new pod needs the room of several old ones by now: a node may have come, or a
        rule of theirs may keep it off, since the rollout began."""
        self.takes_several = self.takes_several or needs_several(self.life, workload)
        return self.takes_several

    def is_last(self, workload: Manifest, pod: Manifest) -> bool:
        """Whether the controller of groups had to end a leader because fewer are asked for: it ends
        the last ones, and one that stays found no place beside them."""
        wanted = int(workload["spec"].get("replicas", 1))
        return any(number < wanted <= _number(pod) for number in self.waiting)

    def _without_a_place(self, workload: Manifest) -> frozenset[int]:
        if not self.life.scene.groups:
            return frozenset()
        pods = [pod for pod in self.life.pods if leader_of(pod) is not None]
        placed = Counter(_number(pod) for pod in pods if pod["spec"].get("nodeName"))
        asked = range(int(workload["spec"].get("replicas", 1)))
        found = frozenset(number for number in asked if placed[number] < _GROUP_SIZE)
        return frozenset() if found and fits(self.life.state, workload, ()) else found

    def _away(self, wanted: int) -> int:
        """Replicas that may be away by what people ask for."""
        asked = (self.life.spec.get("rollout") or {}).get("strategy", "Auto")
        if asked == "Recreate" or self.takes_several:
            return wanted
        return 0 if asked == "Surge" and not self.life.scene.groups else 1

    def _places(self, workload: Manifest) -> int:
        """Replicas that have their nodes, those that end included, or would find one."""
        own = filter(self.life.is_own, self.life.state.all(POD))
        gone = {None, *self.life.state.lost}  # what is on a node that reports no more gives nothing
        held = [p for p in own if p["spec"].get("nodeName") not in gone and not is_terminal(p)]
        replicas = len(held) // (_GROUP_SIZE if self.life.scene.groups else 1)
        if replicas >= self.before or fits(self.life.state, workload, ()):
            return self.before
        return replicas


def _number(pod: Manifest) -> int:
    """The number of a pod's group."""
    return int(str(leader_of(pod)).rpartition("-")[2])
