"""A node that is lost takes its replica with it and nothing else: no rollout, and no rollback."""

from __future__ import annotations

import copy
from typing import Any

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    gpu_node,
    pod_of,
    ready_records,
    reconciler,
    unschedulable_pod,
)
from tests.support.operator.fake_cluster import FakeCluster

GPU = {"type": "amd", "product": "MI300X"}
NO_ROOM = "0/2 nodes are available: 1 Insufficient amd.com/gpu, 1 node(s) had untolerated taint."
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


async def serving_on_two_full_nodes() -> FakeCluster:
    """Two replicas of one GPU each, on two nodes that have no other."""
    cluster = cluster_with(accelerator=GPU, replicas=2)
    cluster.nodes = [gpu_node("a", 1), gpu_node("b", 1)]
    await reconciler(cluster).reconcile(KEY)
    for name, node in (("chat-1", "a"), ("chat-2", "b")):
        cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), name, node))
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "True"
    return cluster


def ready(pod: dict[str, Any], state: str = "True") -> dict[str, Any]:
    told = pod["status"]["conditions"]
    told[:] = [item for item in told if item["type"] != "Ready"]
    told.append({"type": "Ready", "status": state, "lastTransitionTime": "2026-01-02T03:00:45Z"})
    running = {"running": {"startedAt": "2026-01-02T02:00:00Z"}}
    engine = {"name": "engine", "ready": True, "restartCount": 0, "state": running}
    pod["status"] |= {"phase": "Running", "containerStatuses": [engine]}
    return pod


def lose_node_b(cluster: FakeCluster) -> None:
    """What the node controller writes forty seconds after the last heartbeat."""
    cluster.nodes = [gpu_node("a", 1), gpu_node("b", 1, ready="Unknown", taints=[UNREACHABLE])]
    ready(cluster.find(POD, "chat-2"), "False")
    finish_rollout(cluster, ready=1)


def evict(cluster: FakeCluster) -> None:
    """Five minutes later: the pod is to go, which nobody confirms, and another is wanted."""
    cluster.find(POD, "chat-2")["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.put_pod(unschedulable_pod(cluster, NO_ROOM, "chat-3"))


def workload(cluster: FakeCluster) -> dict[str, Any]:
    return copy.deepcopy(dict(cluster.find(DEPLOYMENT, "chat")["spec"]))


async def look(cluster: FakeCluster) -> None:
    for _ in range(3):
        await reconciler(cluster).reconcile(KEY)


async def test_a_silent_node_and_the_fault_of_another_pod_are_both_told() -> None:
    cluster = await serving_on_two_full_nodes()
    lose_node_b(cluster)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    engine = {"name": "engine", "ready": False, "restartCount": 0, "state": waiting}
    ready(cluster.find(POD, "chat-1"), "False")["status"]["containerStatuses"] = [engine]
    finish_rollout(cluster, ready=0)
    await look(cluster)
    for kind in ("Degraded", "Ready"):
        message = condition(cluster, kind)["message"]
        assert "no such image" in message
        assert "node b has not reported" in message


async def test_what_is_left_serves_and_nothing_is_changed() -> None:
    cluster = await serving_on_two_full_nodes()
    before, records = workload(cluster), ready_records(cluster)
    lose_node_b(cluster)
    await look(cluster)
    assert condition(cluster, "Available")["status"] == "True"
    assert condition(cluster, "Ready")["status"] == "False"
    assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["readyReplicas"] == 1
    assert workload(cluster) == before
    assert ready_records(cluster) == records


async def test_the_silent_node_is_named_and_since_when_until_others_serve() -> None:
    cluster = await serving_on_two_full_nodes()
    assert condition(cluster, "Degraded")["status"] == "False"
    lose_node_b(cluster)
    cluster.nodes = None  # nobody may read nodes: the pod alone tells
    for step in (lambda _cluster: None, evict):
        step(cluster)
        await look(cluster)
        for kind in ("Degraded", "Ready"):
            told = condition(cluster, kind)
            assert told["reason"] == "NodeSilent", told
            assert "node b has not reported since 2026-01-02T03:00:45Z" in told["message"]
            assert "chat-2" in told["message"]
    cluster.put_pod(ready(pod_of(cluster.find(DEPLOYMENT, "chat"), "chat-3", "a")))
    finish_rollout(cluster)
    await look(cluster)
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "Ready")["status"] == "True"


async def test_the_silent_node_is_named_beside_what_another_pod_fails_by() -> None:
    cluster = await serving_on_two_full_nodes()
    lose_node_b(cluster)
    failing = ready(cluster.find(POD, "chat-1"), "False")
    ended = {"reason": "Error", "exitCode": 1, "message": "no such model"}
    last = {"terminated": ended}
    failing["status"]["containerStatuses"][0] |= {"ready": False, "lastState": last}
    await look(cluster)
    assert condition(cluster, "Degraded")["reason"] == "PodFailing"
    assert "node b has not reported" in condition(cluster, "Available")["message"]


async def test_a_pod_that_its_kubelet_finds_not_ready_has_no_silent_node() -> None:
    cluster = await serving_on_two_full_nodes()
    pod = ready(cluster.find(POD, "chat-2"), "False")
    pod["status"]["containerStatuses"][0]["ready"] = False
    finish_rollout(cluster, ready=1)
    await look(cluster)
    assert condition(cluster, "Ready")["reason"] == "ReplicasNotReady"


async def test_a_replacement_without_a_place_names_the_node_that_is_lost() -> None:
    cluster = await serving_on_two_full_nodes()
    before = workload(cluster)
    lose_node_b(cluster)
    evict(cluster)
    await look(cluster)
    scheduled = condition(cluster, "Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "InsufficientAccelerators")
    assert "chat-3" in scheduled["message"]
    assert "free: a 0 of 1" in scheduled["message"]
    assert "b: not ready" in scheduled["message"]
    # The pod that serves is never given up for one that cannot be placed, nor is this a failure
    # of the revision, however long it lasts.
    assert workload(cluster) == before
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["status"]["conditions"] = [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    ]
    await look(cluster)
    assert workload(cluster) == before
    assert condition(cluster, "Degraded")["reason"] != "RolledBack"


async def test_a_change_meanwhile_does_not_wait_for_the_lost_node() -> None:
    """The GPU of the lost node is no room, and neither does its pod hold a rollout up."""
    cluster = await serving_on_two_full_nodes()
    lose_node_b(cluster)
    evict(cluster)
    await look(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await look(cluster)
    told = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"]
    assert told["strategy"] == "InPlace", "the replicas on other nodes take turns"
    assert "no eligible node has 1 amd.com/gpu free" in told["reason"]


async def test_a_pod_that_cannot_end_on_a_lost_node_is_not_waited_for() -> None:
    """It is to go for ever; the new pod needs what the old one on the other node holds."""
    cluster = await serving_on_two_full_nodes()
    lose_node_b(cluster)
    evict(cluster)
    await look(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await look(cluster)
    stored = cluster.find(DEPLOYMENT, "chat")
    stored["status"] = {
        "observedGeneration": stored["metadata"]["generation"],
        "replicas": 2,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
    }
    await look(cluster)
    assert workload(cluster)["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 2}


async def test_when_the_node_is_back_all_is_as_before() -> None:
    cluster = await serving_on_two_full_nodes()
    before = workload(cluster)
    lose_node_b(cluster)
    evict(cluster)
    await look(cluster)
    cluster.nodes = [gpu_node("a", 1), gpu_node("b", 1)]
    for name in ("chat-2", "chat-3"):
        del cluster.objects[POD, "default", name]
    cluster.put_pod(pod_of(cluster.find(DEPLOYMENT, "chat"), "chat-3", "b"))
    finish_rollout(cluster)
    await look(cluster)
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "Scheduled")["status"] == "True"
    assert workload(cluster) == before
