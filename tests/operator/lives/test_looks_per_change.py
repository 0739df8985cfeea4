"""What a change costs from its event to rest: looks and requests, counted in the in-memory cluster.

The queue, the informers and the watch of AtomDeployments are the operator's own. The watches here
are always faster than the answers to the writes that they show, which is the worst case.
"""

from __future__ import annotations

import asyncio
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import ATOM_DEPLOYMENT, ObjectKey
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from atom_operator.workqueue import WorkQueue
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.operator.builders_operator import IMAGES, KEY, atom_deployment, gpu_node
from tests.support.operator.cached_cluster import Followed, followed
from tests.support.operator.fake_engines import FakeEngines
from tests.support.virtual_time import run_virtually

_STEP_SECONDS = 0.1  # in which every controller looks once
_WRITES = ("apply", "replace", "delete", "apply_status")
_GPU = {"type": "amd", "product": "MI300X"}


class _SlowAnswers:
    """A cluster whose watches tell of a write before it is answered."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self._cluster = cluster
        self.world: Followed | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cluster.api, name)
        if name not in _WRITES:
            return found

        async def write(*arguments: Any, **named: Any) -> Any:
            answer = await found(*arguments, **named)
            assert self.world is not None
            await self.world.tell()
            return answer

        return write


class _Operator:
    """Looks at what its watches tell of, beside a cluster whose time passes."""

    def __init__(self, cluster: InMemoryCluster, world: Followed) -> None:
        self.cluster, self.world, self.looks = cluster, world, 0
        fleet = FleetReader(world.port, lambda: cluster.state.time)
        engines = FakeEngines()
        decider = Decider(world.port, fleet, engines, OperatorSettings(engine_images=IMAGES))
        self.reconciler = Reconciler(world.port, engines, decider, clock=cluster.state.now)
        self.queue: WorkQueue[ObjectKey] = WorkQueue(self._look, expected=ClusterError)
        world.wake = lambda name, urgent: self.queue.add(ObjectKey("default", name), urgent=urgent)

    async def _look(self, key: ObjectKey) -> float | None:
        self.looks += 1
        with self.world.news.reconciling(key):
            return (await self.reconciler.reconcile(key)).requeue_after_seconds

    async def live(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(round(seconds / _STEP_SECONDS)):
            self.cluster.state.time += _STEP_SECONDS
            self.cluster.act()
            await self.world.tell()
            await asyncio.sleep(_STEP_SECONDS)

    def forget(self) -> None:
        """Count from here."""
        self.looks = 0
        self.cluster.api.reads.clear()
        self.cluster.api.writes.clear()


def _changed(note: str) -> dict[str, Any]:
    return atom_deployment(accelerator=_GPU, template={"metadata": {"annotations": {"note": note}}})


async def _one_change() -> tuple[int, list[str], list[str]]:
    """How many looks, reads and writes a change of the pods is, until the old ones have gone."""
    cluster = InMemoryCluster(nodes=[gpu_node("one")])
    cluster.kubelets.load_seconds, cluster.kubelets.end_seconds = 0.3, 0.3
    behind = _SlowAnswers(cluster)
    async with followed(cluster.api, behind) as world:
        behind.world = world
        operator = _Operator(cluster, world)
        workers = [asyncio.create_task(operator.queue.work()) for _ in range(4)]
        cluster.api.create(ATOM_DEPLOYMENT, _changed("first"))
        await operator.live(12.0)
        operator.forget()
        cluster.api.create(ATOM_DEPLOYMENT, _changed("second"))
        await operator.live(14.0)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        operator.queue.close()
        status = cluster.api.find(ATOM_DEPLOYMENT, KEY.name)["status"]
        assert status["observedGeneration"] == 2
        assert status["conditions"][-1]["status"] == "True", "the new pods serve"
        return operator.looks, list(cluster.api.reads), list(cluster.api.writes)


def test_a_change_is_few_looks_and_each_thing_is_written_once() -> None:
    looks, reads, writes = run_virtually(_one_change())
    assert looks <= 3, "its own, and one a second while pods come and go"
    assert writes.count("apply Deployment/chat") == 1
    assert len([each for each in writes if each.startswith("delete")]) == 3, "records"
    assert writes.count("status") <= looks
    # Three of them keep the spec of the pods that go, which Service and route follow until then.
    assert len(reads) + len(writes) <= 26, (reads, writes)
