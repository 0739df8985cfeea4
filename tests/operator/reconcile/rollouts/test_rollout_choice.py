"""The strategy of each rollout comes from the free accelerators, and never waits behind itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD, Manifest
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    gated_pod,
    gpu_node,
    gpu_pod,
    pod_of,
    reconciler,
    unschedulable_pod,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.merged_fields import copied

GPU = {"type": "amd", "product": "MI300X"}
NO_ROOM = "0/1 nodes are available: 1 Insufficient amd.com/gpu."


async def running(nodes: list[Any] | None, used: int, **changes: Any) -> FakeCluster:
    """One replica of `chat` on node a, beside pods that hold `used` devices."""
    cluster = cluster_with(accelerator=GPU, **changes)
    cluster.nodes = nodes
    if used:
        cluster.put_pod(gpu_pod("other-1", "a", used))
    await reconciler(cluster).reconcile(KEY)
    put_replica(cluster, "chat-1", "a")
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    return cluster


def put_replica(cluster: FakeCluster, name: str, node: str) -> None:
    """A pod as the Deployment makes it now."""
    cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), name, node))


async def change(cluster: FakeCluster, **engine: Any) -> dict[str, Any]:
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=engine or {"maxModelLen": 1024})
    await reconciler(cluster).reconcile(KEY)
    return status(cluster)


def status(cluster: FakeCluster) -> dict[str, Any]:
    return dict(cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"])


def strategy(cluster: FakeCluster) -> dict[str, Any]:
    return dict(cluster.find(DEPLOYMENT, "chat")["spec"]["strategy"])


async def test_a_free_device_is_used_for_a_spare_pod() -> None:
    cluster = await running([gpu_node("a")], used=6)
    chosen = await change(cluster)
    assert chosen["strategy"] == "Surge"
    assert "node a has 1 amd.com/gpu free" in chosen["reason"]
    assert strategy(cluster)["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(
    "nodes",
    [
        [gpu_node("a")],
        [gpu_node("a"), gpu_node("b", cordoned=True)],
        [gpu_node("a"), gpu_node("c", labels={"amd.com/gpu.device-id": "74a5"})],
        [gpu_node("a"), gpu_node("d", resource="amd.com/cpx_nps1")],
    ],
    ids=["full", "cordoned", "other product", "other resource"],
)
async def test_without_a_free_device_pods_are_replaced_in_place(nodes: list[Any]) -> None:
    cluster = await running(nodes, used=7)
    chosen = await change(cluster)
    assert chosen["strategy"] == "InPlace"
    assert "no eligible node has 1 amd.com/gpu free" in chosen["reason"]
    assert strategy(cluster)["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


async def test_a_pod_that_needs_more_than_an_old_one_gives_back_recreates() -> None:
    cluster = await running([gpu_node("a", 2)], used=0)
    put_replica(cluster, "chat-2", "a")
    two = {"limits": {"amd.com/gpu": "2"}, "requests": {"amd.com/gpu": "2"}}
    template = {"spec": {"containers": [{"name": "engine", "resources": two}]}}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", template=template)
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "Recreate"
    assert strategy(cluster)["type"] == "Recreate"
    assert not strategy(cluster).get("rollingUpdate")


async def test_where_nodes_cannot_be_read_no_device_is_assumed_free() -> None:
    cluster = await running(None, used=0)
    chosen = await change(cluster)
    assert (chosen["strategy"], "cannot be read" in chosen["reason"]) == ("InPlace", True)


async def test_the_choice_stays_while_its_rollout_lasts_and_costs_no_read_afterwards() -> None:
    cluster = await running([gpu_node("a")], used=6)
    chosen = await change(cluster)
    cluster.put_pod(gpu_pod("other-2", "a", 1))  # the free device is gone
    writes, reads = len(cluster.writes), cluster.pod_reads
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster) == chosen
    assert cluster.pod_reads == reads
    assert "status" not in cluster.writes[writes:]


def surging(cluster: FakeCluster, message: str) -> None:
    """The new pod of a surge is there, and the scheduler finds no node for it."""
    deployment = cluster.find(DEPLOYMENT, "chat")
    generation = deployment["metadata"]["generation"]
    deployment["status"].update(observedGeneration=generation, replicas=2, updatedReplicas=1)
    cluster.put_pod(unschedulable_pod(cluster, message))


async def test_a_spare_pod_without_a_device_is_not_waited_for() -> None:
    cluster = await running([gpu_node("a")], used=6)
    await change(cluster)
    cluster.put_pod(gpu_pod("other-2", "a", 1))
    surging(cluster, NO_ROOM)
    outcome = await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "InPlace"
    assert outcome.requeue_after_seconds is not None
    del cluster.objects[POD, "default", "chat-9"]
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "InPlace"


async def one_of_two_replaced(new: Callable[[FakeCluster], Manifest]) -> FakeCluster:
    """Two replicas in place on a full node: one has gone, and the `new` one does not start."""
    cluster = await running([gpu_node("a", 2)], used=0, replicas=2)
    put_replica(cluster, "chat-2", "a")
    await change(cluster)
    assert strategy(cluster)["rollingUpdate"]["maxUnavailable"] == 1
    del cluster.objects[POD, "default", "chat-2"]
    cluster.put_pod(gpu_pod("other-1", "a", 1))
    deployment = cluster.find(DEPLOYMENT, "chat")
    deployment["status"].update(
        observedGeneration=deployment["metadata"]["generation"],
        replicas=2,
        updatedReplicas=1,
        readyReplicas=1,
        availableReplicas=1,
    )
    cluster.put_pod(new(cluster))
    return cluster


async def test_a_place_that_was_taken_meanwhile_is_not_waited_for() -> None:
    """Two replicas in place: the one that went has lost its device to somebody else."""
    cluster = await one_of_two_replaced(lambda made: unschedulable_pod(made, NO_ROOM))
    draining = copied(cluster.find(POD, "chat-1"))  # made from the same template
    del draining["metadata"]["uid"]
    draining["metadata"]["name"] = "chat-2"
    draining["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.put_pod(draining)
    await reconciler(cluster).reconcile(KEY)
    assert strategy(cluster)["rollingUpdate"]["maxUnavailable"] == 1, "its place comes free yet"
    del cluster.objects[POD, "default", "chat-2"]
    for _ in range(2):
        await reconciler(cluster).reconcile(KEY)
    assert strategy(cluster)["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 2}
    assert "2 pods may be away at a time" in status(cluster)["reason"]
    # The next rollout begins with a single pod again.
    for gone in ("other-1", "chat-9"):
        del cluster.objects[POD, "default", gone]
    finish_rollout(cluster)
    chosen = await change(cluster, maxModelLen=512)
    assert chosen["strategy"] == "InPlace"
    assert strategy(cluster)["rollingUpdate"]["maxUnavailable"] == 1


async def test_an_old_picture_of_the_nodes_stops_no_pod_that_serves() -> None:
    """Nodes and pods are read once in five seconds; the pods of an AtomDeployment are watched."""
    cluster = await running([gpu_node("a", 2)], used=0, replicas=2)
    put_replica(cluster, "chat-2", "a")
    await change(cluster)
    deployment = cluster.find(DEPLOYMENT, "chat")
    deployment["status"].update(
        observedGeneration=deployment["metadata"]["generation"],
        replicas=2,
        updatedReplicas=1,
        readyReplicas=1,
        availableReplicas=1,
    )
    cluster.find(POD, "chat-2")["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.put_pod(unschedulable_pod(cluster, NO_ROOM))
    worker = reconciler(cluster)
    await worker.reconcile(KEY)
    del cluster.objects[POD, "default", "chat-2"]  # and its device is free
    await worker.reconcile(KEY)
    assert strategy(cluster)["rollingUpdate"]["maxUnavailable"] == 1
    assert "no eligible node has 1 amd.com/gpu free" in status(cluster)["reason"]


async def test_new_pods_make_no_room_for_others_of_their_revision() -> None:
    cluster = await running([gpu_node("a", 1), gpu_node("b", 1, cordoned=True)], used=0, replicas=2)
    put_replica(cluster, "chat-2", "b")
    await change(cluster)
    annotation = {"serving.atom.dev/revision": revision_of(cluster)}
    cluster.find(POD, "chat-1")["metadata"]["annotations"] = annotation  # it has been replaced
    before = strategy(cluster)
    deployment = cluster.find(DEPLOYMENT, "chat")
    deployment["status"].update(
        observedGeneration=deployment["metadata"]["generation"],
        replicas=3,
        updatedReplicas=2,
        readyReplicas=1,
        availableReplicas=1,
    )
    cluster.put_pod(unschedulable_pod(cluster, NO_ROOM))
    await reconciler(cluster).reconcile(KEY)
    kept = strategy(cluster)
    assert kept.get("rollingUpdate", {}).get("maxUnavailable", 0) <= 1, (before, kept)
    assert kept["type"] == "RollingUpdate", "the old pod on b serves on: b takes no new one"


def revision_of(cluster: FakeCluster) -> str:
    annotations = cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"]
    return str(annotations["serving.atom.dev/revision"])


async def test_old_pods_make_no_room_for_what_a_quota_holds_back() -> None:
    cluster = await one_of_two_replaced(lambda made: gated_pod(made, "chat-9"))
    before = strategy(cluster)
    for _ in range(2):
        await reconciler(cluster).reconcile(KEY)
    assert strategy(cluster) == before, "who the quota admits next need not be us"
    scheduled = condition(cluster, "Scheduled")
    assert scheduled["reason"] == "Unschedulable"
    assert "scheduling gate" in scheduled["message"]


async def test_old_pods_stay_when_something_else_is_missing() -> None:
    cluster = await running([gpu_node("a")], used=6)
    await change(cluster)
    surging(cluster, "0/1 nodes are available: 1 Insufficient memory.")
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "Surge"


async def test_old_pods_stay_when_no_node_could_ever_take_a_new_one() -> None:
    cluster = await running([gpu_node("a")], used=0)
    other = {"type": "amd", "product": "MI325X"}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", accelerator=other)
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "Surge"
    assert "the old ones serve until a node can take a new one" in status(cluster)["reason"]
    chosen = status(cluster)
    surging(cluster, NO_ROOM)
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == chosen["strategy"]


async def test_where_nodes_cannot_be_read_the_scheduler_is_believed() -> None:
    cluster = await running(None, used=0)
    deployment = cluster.find(DEPLOYMENT, "chat")
    deployment["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 1, "maxUnavailable": 0}
    surging(cluster, NO_ROOM)
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "InPlace"
    assert "the spare pod of a surge found no node" in status(cluster)["reason"]


async def test_a_cpu_surge_without_memory_goes_on_in_place() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await change(cluster)
    surging(cluster, "0/1 nodes are available: 1 Insufficient memory.")
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "InPlace"


async def test_a_scale_up_without_devices_changes_no_strategy() -> None:
    cluster = await running([gpu_node("a")], used=6)
    chosen = await change(cluster)
    finish_rollout(cluster)
    cluster.put_pod(gpu_pod("other-2", "a", 1))
    cluster.put_pod(unschedulable_pod(cluster, NO_ROOM))
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == chosen["strategy"] == "Surge"


async def test_a_strategy_that_was_asked_for_ends_with_the_asking() -> None:
    cluster = await running([gpu_node("a")], used=7, rollout={"strategy": "Recreate"})
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", rollout={})
    await reconciler(cluster).reconcile(KEY)
    assert status(cluster)["strategy"] == "InPlace"


@pytest.mark.parametrize("asked", ["Surge", "InPlace", "Recreate"])
async def test_a_strategy_that_is_asked_for_is_taken(asked: str) -> None:
    cluster = await running([gpu_node("a")], used=7, rollout={"strategy": asked})
    chosen = await change(cluster)
    assert chosen["strategy"] == asked
    assert chosen["reason"] == f"spec.rollout.strategy is {asked}"


async def test_a_cpu_rollout_surges_and_asks_no_node() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await change(cluster)
    assert status(cluster)["strategy"] == "Surge"
    assert (cluster.node_reads, cluster.pod_reads) == (0, 0)


async def test_a_pod_without_a_device_says_what_is_free_and_what_blocks() -> None:
    cluster = cluster_with(accelerator=GPU)
    cluster.nodes = [gpu_node("a"), gpu_node("b", cordoned=True)]
    cluster.put_pod(gpu_pod("other-1", "a", 8))
    await reconciler(cluster).reconcile(KEY)
    cluster.put_pod(unschedulable_pod(cluster, NO_ROOM))
    await reconciler(cluster).reconcile(KEY)
    scheduled = condition(cluster, "Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "InsufficientAccelerators")
    assert "free: a 0 of 8; blocked: b: cordoned" in scheduled["message"]
    assert condition(cluster, "Ready")["reason"] == "InsufficientAccelerators"


async def test_the_memory_of_the_nodes_fills_a_plan_without_a_product() -> None:
    cluster = cluster_with(accelerator={"type": "amd"})
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    cluster.nodes.append(gpu_node("c", labels={"amd.com/gpu.device-id": "740f"}))
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["reason"] == "AcceleratorMemoryUnknown"
