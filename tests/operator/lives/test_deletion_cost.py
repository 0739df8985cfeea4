"""A scale-down ends the idlest pod, by a user or an autoscaler; at rest no cost is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.constants import ANNOTATION_DELETION_COST
from atom_operator.domain import ATOM_DEPLOYMENT, POD, EngineLoad, Manifest
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator.fake_cluster import FakeCluster

_START_SECONDS, _LOOK_SECONDS, _DOWN_SECONDS = 400.0, 70.0, 1500.0
_RESYNC_SECONDS = 310.0  # within which this operator sees another spec


class World:
    """Three replicas on the CPU, that their engines' loads tell apart."""

    def __init__(self, **spec: Any) -> None:
        self.api = FakeCluster()
        self.cluster = InMemoryCluster(self.api, [gpu_node("a")])
        self.operator = OperatorClient(self.cluster)
        self.api.create(ATOM_DEPLOYMENT, atom_deployment(replicas=3, **spec))
        self.cluster.state.load["chat"] = 3.0 * 0.8
        self.cluster.advance(_START_SECONDS)

    def pods(self) -> list[Manifest]:
        return sorted(self.cluster.serving("chat"), key=lambda pod: pod["metadata"]["name"])

    def open_requests(self, *requests: int) -> list[str]:
        """The names of the pods that have so many."""
        pods = self.pods()
        assert len(pods) == len(requests)
        for pod, number in zip(pods, requests, strict=True):
            self.operator.engines.loads[pod["status"]["podIP"]] = EngineLoad(number, 0)
        return [pod["metadata"]["name"] for pod in pods]

    def left(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods()}

    def costs_written(self) -> list[str]:
        return [write for write in self.api.writes if write.startswith("apply Pod/")]


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.operator.close()


def world(worlds: list[World], **spec: Any) -> World:
    worlds.append(World(**spec))
    return worlds[-1]


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_fewer_replicas_leave_the_busiest(worlds: list[World], busy: int) -> None:
    life = world(worlds)
    names = life.open_requests(*(9 if number == busy else 0 for number in range(3)))
    assert life.costs_written() == []
    life.api.change_spec(ATOM_DEPLOYMENT, "chat", replicas=1)
    life.cluster.advance(_RESYNC_SECONDS)
    assert life.left() == {names[busy]}
    assert life.costs_written() == [f"apply Pod/{names[busy]}"]


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_an_autoscaler_leaves_the_busiest(worlds: list[World], busy: int) -> None:
    life = world(worlds, autoscaling={"method": "HPA", "maxReplicas": 3})
    names = life.open_requests(*(9 if number == busy else 0 for number in range(3)))
    life.cluster.advance(_LOOK_SECONDS)
    life.cluster.state.load["chat"] = 0.5
    life.cluster.advance(_DOWN_SECONDS)
    assert life.left() == {names[busy]}


def test_at_rest_nothing_is_written(worlds: list[World]) -> None:
    life = world(worlds, autoscaling={"method": "HPA", "maxReplicas": 3})
    life.open_requests(1, 5, 40)
    life.cluster.advance(_LOOK_SECONDS)
    assert life.costs_written()
    life.api.writes.clear()
    life.open_requests(2, 7, 50)  # another load, in the same order
    life.cluster.advance(_DOWN_SECONDS)
    assert life.api.writes == []


def test_pods_that_nobody_may_end_soon_are_not_asked(worlds: list[World]) -> None:
    life = world(worlds)
    life.open_requests(1, 5, 40)
    life.operator.engines.asked.clear()
    life.cluster.advance(_DOWN_SECONDS)
    assert not [asked for asked in life.operator.engines.asked if asked.endswith("/metrics")]


def test_a_scale_down_goes_on_where_costs_cannot_be_written(worlds: list[World]) -> None:
    life = world(worlds)
    life.open_requests(9, 5, 0)
    life.api.refused_kinds[POD] = "pods is forbidden"
    life.api.change_spec(ATOM_DEPLOYMENT, "chat", replicas=2)
    life.cluster.advance(_RESYNC_SECONDS)
    assert len(life.left()) == 2
    assert not any(_cost(pod) for pod in life.pods())


def _cost(pod: Manifest) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_DELETION_COST)
