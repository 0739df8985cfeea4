"""A rollout by Auto takes at most one replica from those that served before it, however many more
replicas are asked for than there are places, whatever there is too little of and whoever edits."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.support.in_memory_cluster.kinds import RESOURCE_QUOTA
from tests.support.in_memory_cluster.state import condition_of
from tests.support.operator_life.happenings import GOOD
from tests.support.operator_life.life import Life
from tests.support.operator_life.story import Scene

_BAD, _TYPO = "registry.test/atom:bad", "registry.test/atom:typo"
_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_START_SECONDS, _ROLLOUT_SECONDS = 400, 3000


def _scene(**changes: Any) -> Scene:
    usual = {"devices": 8, "nodes": 1, "replicas": 1, "per_pod_gib": None, "node_gib": 1024}
    return Scene(**{**usual, **changes})


# What there is too little of: a scene with so many places for so many replicas.
LACKS: dict[str, Any] = {
    "devices": lambda places, replicas: _scene(nodes=places, replicas=replicas),
    "half nodes": lambda places, replicas: _scene(
        devices=4, nodes=places, replicas=places + replicas
    ),
    "cpu": lambda places, replicas: _scene(
        devices=0, nodes=places, replicas=replicas, per_pod_gib=100, node_gib=110
    ),
    "memory beside devices": lambda places, replicas: _scene(
        devices=2, nodes=places, replicas=replicas, per_pod_gib=100, node_gib=110
    ),
    "claims": lambda places, replicas: _scene(nodes=places, replicas=replicas, claimed=True),
    "groups": lambda _places, replicas: _scene(nodes=2 * replicas, replicas=replicas, groups=True),
    "quota of pods": lambda places, replicas: _scene(devices=1, nodes=6, replicas=replicas),
    "quota of devices": lambda places, replicas: _scene(devices=8, nodes=6, replicas=replicas),
    "quota on the cpu": lambda places, replicas: _scene(devices=0, nodes=6, replicas=replicas),
    "quota of claims": lambda places, replicas: _scene(nodes=6, replicas=replicas, claimed=True),
}
QUOTAS = {
    "quota of pods": ("pods", 1),
    "quota of devices": ("requests.amd.com/gpu", 8),
    "quota on the cpu": ("pods", 1),
    "quota of claims": ("gpu.amd.com.deviceclass.resource.k8s.io/devices", 8),
}
EDITS = {"good": GOOD[1], "bad": _BAD, "typo": _TYPO}
CASES = list(product(LACKS, (1, 2, 3), (1, 2), EDITS))
# Every lack with every edit, few and many places, and one and two replicas too many.
DAILY = {(2, 1, "good"), (3, 2, "bad")}


class Crowded(Life):
    """A life in which fewer replicas have a place than are asked for."""

    def __init__(self, lacks: str, places: int, more: int) -> None:
        self.fewest = 10**9
        scene = LACKS[lacks](places, places + more)
        self.quota = (QUOTAS[lacks], places) if lacks in QUOTAS else None
        super().__init__(scene)
        self.cluster.clients.append(self._count)

    def _apply(self) -> None:
        if self.quota is not None and not self.state.all(RESOURCE_QUOTA):
            (resource, each), places = self.quota
            manifest = {"metadata": {"name": "team"}, "spec": {"hard": {resource: each * places}}}
            self.state.create(RESOURCE_QUOTA, manifest)
        super()._apply()

    def take_places(self, places: int) -> None:
        """Drain the nodes of groups that are too many: halves of two would each keep a place from
        the other where there are too few from the beginning."""
        for pod in self.pods if self.scene.groups else ():
            if int(pod["metadata"]["labels"][_GROUP]) >= places:
                self.cluster.drain(pod["spec"]["nodeName"])
        self.cluster.advance(_START_SECONDS)

    def _count(self) -> None:
        self.fewest = min(self.fewest, self.answering)

    @property
    def answering(self) -> int:
        return len(self.promises._serving())


def roll_out(lacks: str, places: int, more: int, edit: str) -> None:
    life = Crowded(lacks, places, more)
    try:
        life.cluster.advance(_START_SECONDS)
        life.take_places(places)
        before = life.answering
        assert before == (2 * places if lacks == "half nodes" else places)
        life.fewest = before
        life.engine(image=EDITS[edit])
        life.cluster.advance(_ROLLOUT_SECONDS)
        assert life.fewest >= before - 1
        assert life.answering == before
        images = {p["spec"]["containers"][0]["image"] for p in life.promises._serving()}
        assert images == ({GOOD[1]} if edit == "good" else {GOOD[0]})
        progressing = condition_of(life.parent or {}, "Progressing") or {}
        assert progressing["reason"] != "DeadlineExceeded"
    finally:
        life.operator.close()


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize(
    ("lacks", "places", "more", "edit"), [case for case in CASES if case[1:] in DAILY]
)
def test_all_but_one_of_those_that_served_go_on(
    lacks: str, places: int, more: int, edit: str
) -> None:
    roll_out(lacks, places, more, edit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacks", "places", "more", "edit"), [case for case in CASES if case[1:] not in DAILY]
)
def test_all_but_one_go_on_whatever_there_is_too_little_of(
    lacks: str, places: int, more: int, edit: str
) -> None:
    roll_out(lacks, places, more, edit)
