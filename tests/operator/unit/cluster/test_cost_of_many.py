"""What each of many AtomDeployments with claims, routes and a profile costs: requests, objects that
are decoded, and passes that an event leads to are counted, and are the same however many there are.

tests/operator/live/test_scale.py measures processor and time of 1,000 of them on a real cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

from atom_operator.cluster.object_cache import StoredObject
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    DEPLOYMENT,
    VOLUME_CLAIM,
    Manifest,
    ObjectKey,
)
from atom_operator.kinds import HTTP_ROUTE
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.in_memory_cluster.state import ClusterState
from tests.support.operator.builders_operator import atom_deployment, reconciler
from tests.support.operator.cached_cluster import Followed, followed
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator_life.surroundings import GatewayController
from tools.tiny_deployment import spec

_FEW, _MANY = 4, 24


def _spec(number: int, note: str) -> dict[str, Any]:
    """A claim of its own, one that all share, and a route beside all others."""
    shared = {"name": "shared", "persistentVolumeClaim": {"claimName": "everyone's"}}
    return {
        "model": {**spec()["model"], "servedName": f"m{number}"},
        "cache": {"compile": {"claim": f"kernels-{number}"}},
        "gateway": {
            "httpRoute": {"parentRefs": [{"name": "gate"}], "hostnames": [f"m{number}.test"]}
        },
        "template": {
            "metadata": {"annotations": {"note": note}},
            "spec": {"volumes": [shared]},
        },
    }


class _Fleet:
    """AtomDeployments that are reconciled and serve, with nothing left to do."""

    def __init__(self, world: Followed, many: int) -> None:
        self.world, self.many = world, many
        self.reconciler = reconciler(world.port)
        self.gateway = GatewayController(ClusterState(world.cluster))
        self.decoded: Counter[str] = Counter()

    async def settle(self) -> None:
        for turn in range(4):
            for number in range(self.many):
                await self.look(number)
                if turn == 0:
                    finish_rollout(self.world.cluster, f"m{number}")
            self.gateway.sync()
            await self.hear()
        self.forget()

    async def hear(self) -> None:
        """The watches deliver everything, one event of each in a turn of the loop."""
        await self.world.tell()
        for _ in range(20 * self.many):
            await asyncio.sleep(0)

    async def look(self, number: int) -> None:
        await self.reconciler.reconcile(ObjectKey("default", f"m{number}"))

    def forget(self) -> None:
        self.world.cluster.reads.clear()
        self.world.cluster.writes.clear()
        self.world.announced.clear()
        self.decoded.clear()

    async def change(self, number: int) -> list[str]:
        """Other pods for one of them; return the passes until all is at rest."""
        manifest = atom_deployment(f"m{number}", **_spec(number, "second"))
        self.world.cluster.create(ATOM_DEPLOYMENT, manifest)
        passes: list[str] = []
        for _ in range(12):
            await self.hear()
            due = list(dict.fromkeys(self.world.announced))
            self.world.announced.clear()
            if not due:
                return passes
            for name in due:
                passes.append(name)
                await self.look(int(name.removeprefix("m")))
                finish_rollout(self.world.cluster, name)
        raise AssertionError(f"no rest after {passes}")


@asynccontextmanager
async def _at_rest(many: int) -> AsyncIterator[_Fleet]:
    cluster = FakeCluster()
    metadata = {"name": "default", "namespace": ""}
    below = {"engine": {"env": [{"name": "SITE", "value": "a"}]}}
    cluster.create(ATOM_PROFILE, {"metadata": metadata, "spec": below})
    modes = {"everyone's": "ReadWriteMany"} | {
        f"kernels-{number}": "ReadWriteOnce" for number in range(many)
    }
    for name, mode in modes.items():
        metadata = {"name": name, "namespace": "default"}
        cluster.create(VOLUME_CLAIM, {"metadata": metadata, "spec": {"accessModes": [mode]}})
    for number in range(many):
        cluster.create(ATOM_DEPLOYMENT, atom_deployment(f"m{number}", **_spec(number, "first")))
    original = StoredObject.manifest
    async with followed(cluster) as world:
        fleet = _Fleet(world, many)

        def counted(stored: StoredObject) -> Manifest:
            fleet.decoded["objects"] += 1
            return original(stored)

        with mock.patch.object(StoredObject, "manifest", counted):
            await fleet.settle()
            yield fleet


async def _rest(many: int) -> tuple[Counter[str], int]:
    """Requests and decoded objects of one look at one that is at rest."""
    async with _at_rest(many) as fleet:
        assert len(fleet.world.cluster.names(HTTP_ROUTE)) == many
        fleet.forget()
        await fleet.look(1)
        assert fleet.world.cluster.writes == []
        return Counter(fleet.world.cluster.reads), fleet.decoded["objects"]


async def _changed(many: int) -> tuple[list[str], Counter[str], int]:
    """Passes, requests and decoded objects of a change of one of them."""
    async with _at_rest(many) as fleet:
        passes = await fleet.change(1)
        requests = [*fleet.world.cluster.reads, *fleet.world.cluster.writes]
        asked = Counter(each.partition("/")[0] for each in requests)  # names have digests
        template = fleet.world.cluster.find(DEPLOYMENT, "m1")["spec"]["template"]
        assert template["metadata"]["annotations"]["note"] == "second"
        return passes, asked, fleet.decoded["objects"]


async def test_a_look_at_rest_costs_the_same_however_many_there_are() -> None:
    reads, decoded = await _rest(_FEW)
    assert (await _rest(_MANY)) == (reads, decoded)
    assert reads == {"get AtomDeployment": 1, "get PersistentVolumeClaim": 2}, "each claim once"
    assert decoded <= 20, "its own children, records and pods"


async def test_a_change_costs_the_same_however_many_there_are() -> None:
    passes, asked, decoded = await _changed(_FEW)
    assert set(passes) == {"m1"}, "no other one looks"
    assert await _changed(_MANY) == (passes, asked, decoded)
    assert len(passes) <= 6


async def test_an_event_about_one_wakes_no_other() -> None:
    async with _at_rest(_MANY) as fleet:
        cluster = fleet.world.cluster
        for kind in (HTTP_ROUTE, DEPLOYMENT):
            cluster.find(kind, "m3")["metadata"]["annotations"]["noted"] = "by its controller"
        await fleet.hear()
        assert set(fleet.world.announced) == {"m3"}
