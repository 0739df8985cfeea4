"""Reconciles that read from informers: one request each; what was decided too early is redone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CHILD_KINDS,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
)
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.kinds import LEADER_WORKER_SET
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    gpu_node,
    gpu_pod,
    reconciler,
)
from tests.support.operator.cached_cluster import Followed, followed
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.faulty_cluster import FaultyCluster, Killed

_CACHE = {"name": "cache", "persistentVolumeClaim": {"claimName": "big"}}
MOUNTED = {"template": {"spec": {"volumes": [_CACHE]}}}


async def at_rest(world: Followed) -> Any:
    """A reconciler whose next pass has nothing to do."""
    same = reconciler(world.port)
    await same.reconcile(KEY)
    if (DEPLOYMENT, "default", "chat") in world.cluster.objects:
        finish_rollout(world.cluster)
    for _ in range(2):
        await world.tell()
        await same.reconcile(KEY)
    await world.tell()
    world.announced.clear()
    world.cluster.reads.clear()
    world.cluster.writes.clear()
    return same


async def test_a_steady_reconcile_is_one_request() -> None:
    async with followed(cluster_with(replicas=2)) as world:
        same = await at_rest(world)
        for _ in range(3):
            await same.reconcile(KEY)
        assert world.cluster.reads == ["get AtomDeployment"] * 3
        assert world.cluster.writes == []
        assert world.announced == []


async def test_nodes_are_read_once_for_many_steady_reconciles_with_gpus() -> None:
    cluster = cluster_with(accelerator={"type": "amd", "product": "MI300X"})
    cluster.nodes = [gpu_node("one")]
    async with followed(cluster) as world:
        same = await at_rest(world)
        for _ in range(5):
            await same.reconcile(KEY)
        assert set(world.cluster.reads) <= {"get AtomDeployment", "list Node"}
        assert world.cluster.reads.count("list Node") <= 1


async def test_pods_on_nodes_are_ours_as_the_watch_shows_them_and_others_as_listed() -> None:
    cluster = cluster_with()
    ours, ended = gpu_pod("ours", "one", of="chat"), gpu_pod("ended", "one", of="chat")
    ended["status"]["phase"] = "Failed"
    foreign = gpu_pod("foreign", "two")
    foreign["metadata"]["labels"] = {}
    for each in (ours, ended, foreign):
        cluster.put_pod(each)
    async with followed(cluster) as world:
        seen = placed_pods(await world.port.list_placed_pods())
        listed = placed_pods(await cluster.list_placed_pods())
        assert {pod.name: pod.requests for pod in seen.pods} == {
            pod.name: pod.requests for pod in listed.pods
        }
        assert {pod.name for pod in seen.pods} == {"ours", "foreign"}
        assert [pod.name for pod in seen.of(KEY)] == ["ours"]


async def test_what_a_pass_wrote_the_next_one_reads_before_any_watch_has_told() -> None:
    async with followed(cluster_with(replicas=2)) as world:
        same = reconciler(world.port)
        await same.reconcile(KEY)
        world.cluster.writes.clear()
        world.cluster.reads.clear()
        await same.reconcile(KEY)
        assert [write for write in world.cluster.writes if write != "status"] == []
        assert "list Deployment" not in world.cluster.reads


async def test_who_else_mounts_a_claim_is_asked_of_no_api_server() -> None:
    cluster = cluster_with(**MOUNTED)
    cluster.unserved_kinds.add(LEADER_WORKER_SET)
    async with followed(cluster) as world:
        same = await at_rest(world)
        world.cluster.reads.clear()
        await same.reconcile(KEY)
        assert [read for read in world.cluster.reads if read.startswith("list every")] == []


async def test_a_drift_is_announced_and_put_right() -> None:
    async with followed(cluster_with(replicas=2)) as world:
        same = await at_rest(world)
        world.cluster.change_spec(DEPLOYMENT, "chat", replicas=9)
        del world.cluster.objects[SERVICE, "default", "chat"]
        await world.tell()
        assert set(world.announced) == {"chat"}
        await same.reconcile(KEY)
        assert world.cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 2
        assert world.cluster.names(SERVICE) == ["chat"]


async def test_the_spec_is_never_read_from_a_cache() -> None:
    async with followed(cluster_with(replicas=2)) as world:
        same = await at_rest(world)
        world.cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=5)
        await same.reconcile(KEY)  # though no watch has said anything
        assert world.cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 5


async def test_without_open_watches_everything_is_read_from_the_api_server() -> None:
    cluster = cluster_with(replicas=2)
    async with followed(cluster) as world:
        same = await at_rest(world)
        world.watch.refuses = TransientError("busy")
        world.watch.break_watches()
        await world.tell()
        del cluster.objects[SERVICE, "default", "chat"]
        await same.reconcile(KEY)
        assert cluster.names(SERVICE) == ["chat"]
        assert "list Deployment" in cluster.reads


async def _ends_like_an_undisturbed_one(cluster: FakeCluster, world: Followed) -> None:
    """After every watch has caught up and one more look at everything."""
    expected = await _undisturbed()
    for _ in range(3):
        finish_rollout(cluster)
        await world.tell()
        await reconciler(world.port).reconcile(KEY)
    assert _children(cluster) == expected


async def _undisturbed() -> dict[str, Any]:
    cluster = cluster_with(replicas=3)
    for _ in range(3):
        await reconciler(cluster).reconcile(KEY)
        finish_rollout(cluster)
    return _children(cluster)


def _children(cluster: FakeCluster) -> dict[str, Any]:
    """What there is, without the numbers that count writes."""
    seen: dict[str, Any] = {}
    for (kind, _, name), item in cluster.objects.items():
        if kind in CHILD_KINDS:
            kept = copy.deepcopy(item.get("spec") or item.get("data") or {})
            seen[f"{kind.kind}/{name}"] = kept
    return seen


async def test_killed_after_any_of_its_writes_a_successor_with_caches_ends_at_the_same_state() -> (
    None
):
    for write in range(1, 12):
        cluster = cluster_with(replicas=2)
        async with followed(cluster) as world:
            await reconciler(world.port).reconcile(KEY)
            await world.tell()
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
        faulty = FaultyCluster(cluster, kill_after=write)
        killed = False
        async with followed(cluster, faulty) as world:
            try:
                await reconciler(world.port).reconcile(KEY)
            except Killed:
                killed = True
        async with followed(cluster) as world:
            await _ends_like_an_undisturbed_one(cluster, world)
        if not killed:
            assert write > 2  # the pass had fewer writes: the Deployment and the status
            return
    raise AssertionError("a pass has more writes than this test tries")


@pytest.mark.parametrize("disturb", ["deleted", "drifted", "scaled"])
async def test_a_reconcile_on_caches_that_lag_is_put_right_once_they_caught_up(
    disturb: str,
) -> None:
    cluster = cluster_with(replicas=3)
    async with followed(cluster) as world:
        same = await at_rest(world)
        if disturb == "deleted":
            del cluster.objects[DISRUPTION_BUDGET, "default", "chat"]
            del cluster.objects[DEPLOYMENT, "default", "chat"]
        elif disturb == "drifted":
            cluster.change_spec(SERVICE, "chat", ports=[{"name": "http", "port": 1}])
        else:
            cluster.change_spec(DEPLOYMENT, "chat", replicas=0)
        await same.reconcile(KEY)  # sees nothing of it
        await world.tell()
        assert world.announced
        await same.reconcile(KEY)
        await _ends_like_an_undisturbed_one(cluster, world)
