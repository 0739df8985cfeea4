"""Nodes and pods are read once for many reconciles, and not again and again where forbidden."""

from __future__ import annotations

import asyncio

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.domain.nodes import Nodes
from tests.support.operator.builders_operator import gpu_node
from tests.support.operator.fake_cluster import FakeCluster


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def test_readers_at_the_same_time_share_one_request() -> None:
    cluster, clock = FakeCluster(nodes=[gpu_node("a")]), Clock()
    fleet = FleetReader(cluster, clock)
    answers = await asyncio.gather(*(fleet.nodes() for _ in range(50)))
    assert all(answer is not None and len(answer) == 1 for answer in answers)
    assert cluster.node_reads == 1


async def test_a_list_is_read_again_when_it_is_old() -> None:
    cluster, clock = FakeCluster(nodes=[]), Clock()
    fleet = FleetReader(cluster, clock)
    for seconds in (0, 1, 4, 6, 7):
        clock.seconds = seconds
        await fleet.nodes()
    assert cluster.node_reads == 2


async def test_what_is_wanted_as_it_is_now_is_read_though_the_last_list_is_new() -> None:
    cluster, clock = FakeCluster(nodes=[]), Clock()
    fleet = FleetReader(cluster, clock)
    await fleet.nodes()
    cluster.nodes = [gpu_node("a")]
    clock.seconds = 1
    assert await fleet.nodes() == Nodes()
    assert await fleet.nodes(Age.NOW) == Nodes(cluster.nodes)
    assert await fleet.nodes() == Nodes(cluster.nodes)
    assert cluster.node_reads == 2


async def test_those_who_wait_for_a_list_as_it_is_now_share_the_next_one() -> None:
    clock = Clock()

    class Slow(FakeCluster):
        async def list_nodes(self) -> list[dict[str, object]] | None:
            await asyncio.sleep(0)  # all the others ask meanwhile
            clock.seconds += 1
            return await super().list_nodes()

    cluster = Slow(nodes=[])
    fleet = FleetReader(cluster, clock)
    await asyncio.gather(*(fleet.nodes(Age.NOW) for _ in range(50)))
    assert cluster.node_reads == 2, "the first began before the others asked"


async def test_what_is_forbidden_is_asked_rarely() -> None:
    cluster, clock = FakeCluster(nodes=None), Clock()
    fleet = FleetReader(cluster, clock)
    for seconds in (0, 60, 200):
        clock.seconds = seconds
        assert await fleet.nodes() is None
    assert cluster.node_reads == 1
    cluster.nodes, clock.seconds = [], 301
    assert await fleet.nodes() == Nodes()


async def test_a_failed_read_is_not_kept() -> None:
    class Flaky(FakeCluster):
        async def list_nodes(self) -> list[dict[str, object]]:
            if self.node_reads == 0:
                self.node_reads += 1
                raise TransientError("the API server is busy")
            return await super().list_nodes()

    fleet = FleetReader(Flaky(nodes=[]), Clock())
    with pytest.raises(TransientError):
        await fleet.nodes()
    assert await fleet.nodes() == Nodes()
