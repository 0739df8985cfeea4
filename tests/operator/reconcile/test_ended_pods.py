"""Pods that have ended count in nothing, and are told of while a replica is missing for them."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

import pytest

from atom_operator.children.render import render
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, POD, ChildKey, Manifest
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    cluster_with,
    condition,
    plan,
    pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.merged_fields import copied

ENDS: dict[str, dict[str, Any]] = {
    "evicted for its disk": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi".',
    },
    "evicted, its container killed": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "containerStatuses": [
            {
                "name": "engine",
                "ready": False,
                "restartCount": 7,
                "state": {"terminated": {"exitCode": 137, "reason": "Error"}},
            }
        ],
    },
    "refused by its kubelet": {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to can't allocate unhealthy devices amd.com/gpu",
    },
    "without topology": {"phase": "Failed", "reason": "TopologyAffinityError", "message": "NUMA"},
    "shut down with its node": {
        "phase": "Failed",
        "reason": "Terminated",
        "message": "Pod was terminated in response to imminent node shutdown.",
    },
    "lost with its node": {"phase": "Failed", "reason": "NodeLost", "message": "node a is gone"},
    "out of pods": {"phase": "Failed", "reason": "OutOfpods", "message": "Node didn't have enough"},
    "completed": {"phase": "Succeeded", "reason": "Completed", "message": "it returned"},
    "evicted, and ended in time": {
        "phase": "Succeeded",
        "conditions": [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByKubelet",
                "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi". ',
            }
        ],
    },
    "past its deadline": {"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"},
}


def words(how: str) -> str:
    """What is to be told of it."""
    status = ENDS[how]
    said = status if "reason" in status else status["conditions"][0]
    return f"{said['reason']}: {said['message'].strip()}"


def _rendered() -> FakeCluster:
    """`chat` as its pods are made from it."""
    cluster = FakeCluster()
    cluster.create(DEPLOYMENT, render(plan())[ChildKey(DEPLOYMENT, "chat")])
    return cluster


def ended(how: str, at: datetime = NOW, name: str = "chat-0") -> Manifest:
    """A pod that ended so, whose last report says that it was ready or never was."""
    status = {
        **copy.deepcopy(ENDS[how]),
        "podIP": "10.0.0.9",
        "startTime": stamp(at - timedelta(hours=1)),
    }
    manifest = pod(_rendered(), name, ready=False, **status)
    manifest["metadata"]["creationTimestamp"] = stamp(at - timedelta(hours=1))
    for item in manifest["status"]["conditions"]:
        item.setdefault("lastTransitionTime", stamp(at))
    return manifest


def successor(*, ready: bool, at: datetime, name: str = "chat-1") -> Manifest:
    """A pod made at that time, ready half a minute later."""
    manifest = pod(_rendered(), name, ready=ready, startTime=stamp(at), podIP="10.0.0.1")
    manifest["metadata"]["creationTimestamp"] = stamp(at)
    for item in manifest["status"]["conditions"]:
        item["lastTransitionTime"] = stamp(at + timedelta(seconds=30 if ready else 1))
    return manifest


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


async def served(*pods: Manifest, ready: int, replicas: int = 1) -> FakeCluster:
    cluster = cluster_with(replicas=replicas)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster, ready=ready)
    for manifest in pods:
        cluster.put_pod(copied(manifest))
    return cluster


@pytest.mark.parametrize("how", ENDS)
async def test_beside_its_ready_successor_an_ended_pod_changes_nothing(how: str) -> None:
    after = successor(ready=True, at=NOW)
    told: list[Any] = []
    for pods in ((after,), (after, ended(how), ended(how, NOW - timedelta(days=3), "chat-00"))):
        cluster, engines = await served(*pods, ready=1), FakeEngines()
        outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
        told.append((cluster.find(ATOM_DEPLOYMENT, "chat")["status"], outcome, engines.asked))
    assert told[0] == told[1]
    assert condition(cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize("how", ENDS)
async def test_why_a_replica_is_missing_is_told_until_its_successor_is_ready(how: str) -> None:
    cluster = await served(ended(how), successor(ready=False, at=NOW), ready=0)
    await reconciler(cluster).reconcile(KEY)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodEnded")
    told = words(how)
    assert f"pod chat-0 ended: {told}" in degraded["message"]
    assert condition(cluster, "Ready")["message"] == degraded["message"]
    events = [item for key, item in cluster.objects.items() if key[0].kind == "Event"]
    assert any(told in item["message"] for item in events)

    cluster.put_pod(successor(ready=True, at=NOW))
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "ModelLoaded")["status"] == "True"


@pytest.mark.parametrize("how", ENDS)
async def test_what_ended_long_ago_does_not_explain_another_pods_start(how: str) -> None:
    long_ago = NOW - timedelta(days=7)
    cluster = await served(
        ended(how, long_ago),
        successor(ready=True, at=long_ago),
        successor(ready=False, at=NOW, name="chat-2"),
        ready=1,
        replicas=2,
    )
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_two_that_ended_together_are_told_until_both_are_replaced() -> None:
    later = NOW + timedelta(seconds=1)
    cluster = await served(
        ended("shut down with its node"),
        ended("shut down with its node", name="chat-00"),
        successor(ready=True, at=later),
        successor(ready=False, at=later, name="chat-2"),
        ready=1,
        replicas=2,
    )
    await reconciler(cluster).reconcile(KEY)
    assert "and 1 pods before it" in condition(cluster, "Degraded")["message"]


async def test_of_a_pod_that_ended_well_when_it_was_evicted_an_event_has_the_words() -> None:
    silent = ended("completed")
    for name in ("reason", "message"):
        del silent["status"][name]
    cluster = await served(silent, successor(ready=False, at=NOW), ready=0)
    event = {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "chat-0"},
        "type": "Warning",
        "reason": "Evicted",
        "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi". ',
        "lastTimestamp": stamp(NOW),
    }
    await reconciler(cluster).reconcile(KEY)
    assert "ended without an error" in condition(cluster, "Degraded")["message"]
    cluster.create(EVENT, event)
    await reconciler(cluster).reconcile(KEY)
    assert 'Evicted: Usage of EmptyDir volume "tmp"' in condition(cluster, "Degraded")["message"]
    cluster.put_pod(successor(ready=True, at=NOW))
    finish_rollout(cluster)
    before = cluster.reads.count("list Event")
    await reconciler(cluster).reconcile(KEY)
    assert cluster.reads.count("list Event") == before, "at rest nothing is asked for"


async def test_a_failing_successor_is_told_before_what_ended() -> None:
    crashing = successor(ready=False, at=NOW)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    crashing["status"]["containerStatuses"] = [{"name": "engine", "ready": False, "state": waiting}]
    cluster = await served(ended("out of pods"), crashing, ready=0)
    await reconciler(cluster).reconcile(KEY)
    assert "no such image" in condition(cluster, "Degraded")["message"]


async def test_an_ended_pod_that_is_being_deleted_holds_nothing_up() -> None:
    leaving = ended("completed")
    leaving["metadata"]["deletionTimestamp"] = stamp(NOW)
    cluster = await served(leaving, successor(ready=True, at=NOW), ready=1)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "True"


async def test_a_pod_that_was_asked_to_go_and_ended_well_is_no_fault() -> None:
    leaving = ended("completed")
    for name in ("reason", "message"):
        del leaving["status"][name]
    leaving["metadata"]["deletionTimestamp"] = stamp(NOW)
    cluster = await served(leaving, successor(ready=False, at=NOW), ready=0)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_a_rollback_says_how_the_revisions_pods_ended() -> None:
    cluster = await served(successor(ready=True, at=NOW), ready=1)
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconciler(cluster).reconcile(KEY)
    refused = ended("refused by its kubelet")
    template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["metadata"]
    refused["metadata"]["annotations"] = dict(template["annotations"])
    cluster.put_pod(refused)
    finish_rollout(cluster, ready=1)
    cluster.find(DEPLOYMENT, "chat")["status"].update(
        updatedReplicas=0,
        conditions=[
            {
                "type": "Progressing",
                "status": "False",
                "reason": "ProgressDeadlineExceeded",
                "message": "has timed out progressing",
            }
        ],
    )
    await reconciler(cluster).reconcile(KEY)
    degraded = condition(cluster, "Degraded")
    assert degraded["reason"] == "RolledBack"
    assert "UnexpectedAdmissionError: Allocate failed" in degraded["message"]


async def test_a_pod_whose_kubelet_is_silent_does_not_serve() -> None:
    lost = successor(ready=True, at=NOW)
    lost["status"].update(phase="Unknown", reason="NodeLost", message="Node a is unresponsive")
    cluster, engines = await served(lost, ready=0), FakeEngines()
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert engines.asked == []
    assert "NodeLost: Node a is unresponsive" in condition(cluster, "Degraded")["message"]
    assert cluster.names(POD) == ["chat-1"]
