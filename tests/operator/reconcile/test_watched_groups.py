"""Groups of pods are followed by events: what their controller counts wakes the queue, whether its
CRD is there from the beginning, comes later or goes.
"""

from __future__ import annotations

from datetime import timedelta

from atom_operator.integration_values import Site
from atom_operator.kinds import LEADER_WORKER_SET
from tests.operator.reconcile.test_leader_worker_set import put_group
from tests.support.operator.builders_operator import KEY, NOW, cluster_with, condition, reconciler
from tests.support.operator.cached_cluster import Followed, followed
from tests.support.operator.fake_cluster import FakeCluster

SITE = Site(engine_tensor_parallel=16, engine_multi_node=True)
GROUP = {"tensor": 2, "nodes": 2}


async def look(world: Followed, seconds: float = 0.0) -> float | None:
    """One reconcile, behind what the watches have told; when it wants the next without an event."""
    await world.tell()
    world.announced.clear()
    now = NOW + timedelta(seconds=seconds)
    outcome = await reconciler(world.port, now=now, site=SITE).reconcile(KEY)
    await world.tell()
    world.announced.clear()
    return outcome.requeue_after_seconds


def count(cluster: FakeCluster, ready: int) -> None:
    """LeaderWorkerSet's controller has counted."""
    groups = cluster.find(LEADER_WORKER_SET, "chat")
    groups["status"] = {"replicas": 1, "readyReplicas": ready, "updatedReplicas": 1}
    cluster.touch(groups)


async def test_a_group_that_is_counted_late_wakes_its_deployment() -> None:
    """Its pods are ready before its controller says so, and nothing is asked meanwhile."""
    async with followed(cluster_with(parallelism=GROUP)) as world:
        await look(world)
        put_group(world.cluster)
        count(world.cluster, ready=0)
        assert await look(world) != 10.0, "as it was before there was a watch"
        assert condition(world.cluster, "Ready")["status"] == "False"
        count(world.cluster, ready=1)
        await world.tell()
        assert set(world.announced) == {"chat"}
        world.cluster.reads.clear()
        await look(world)
        assert condition(world.cluster, "Ready")["status"] == "True"
        assert "list LeaderWorkerSet" not in world.cluster.reads


async def test_a_rollout_of_groups_is_looked_at_when_its_deadline_ends_and_not_before() -> None:
    cluster = cluster_with(parallelism=GROUP, rollout={"progressDeadlineSeconds": 60})
    async with followed(cluster) as world:
        assert await look(world) == 60.0
        assert await look(world, 45) == 15.0
        assert await look(world, 60) is None
        assert condition(cluster, "Progressing")["reason"] == "DeadlineExceeded"


async def test_a_crd_that_is_installed_later_is_found_and_then_watched() -> None:
    cluster = cluster_with(parallelism=GROUP)
    cluster.unserved_kinds.add(LEADER_WORKER_SET)
    async with followed(cluster) as world:
        assert await look(world) == 30.0, "no event tells of a CRD"
        assert condition(cluster, "Accepted")["reason"] == "ApiNotServed"
        assert LEADER_WORKER_SET not in {scope.kind for scope in world.watch.opened}
        cluster.unserved_kinds.clear()
        await look(world)
        put_group(cluster)
        await look(world)
        assert LEADER_WORKER_SET in {scope.kind for scope in world.watch.opened}
        assert condition(cluster, "Ready")["status"] == "True"
        count(cluster, ready=0)
        await world.tell()
        assert set(world.announced) == {"chat"}


async def test_a_crd_that_is_removed_is_told_and_its_groups_are_made_anew_with_it() -> None:
    cluster = cluster_with(parallelism=GROUP)
    async with followed(cluster) as world:
        await look(world)
        put_group(cluster)
        await look(world)
        world.watch.remove_crd(LEADER_WORKER_SET)
        await world.tell()
        assert set(world.announced) == {"chat"}
        await look(world)
        assert condition(cluster, "Accepted")["reason"] == "ApiNotServed"
        cluster.unserved_kinds.clear()
        await look(world)
        assert cluster.names(LEADER_WORKER_SET) == ["chat"]
