"""Groups of pods: given up in time, steadily reported, and exchanged for single pods and back.

What LeaderWorkerSet's controller does is played as it was seen of v0.7.0: no observedGeneration, no
deadline, and every pod of a group that fails made anew within seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, POD, SERVICE, Manifest
from atom_operator.integration_values import Site
from atom_operator.kinds import LEADER_WORKER_SET
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    cluster_with,
    condition,
    gpu_node,
    ready_records,
    reconciler,
    unschedulable_pod,
)
from tests.support.operator.fake_cluster import FakeCluster

SITE = Site(engine_tensor_parallel=16, engine_multi_node=True)
GROUP = {"tensor": 2, "nodes": 2}
ONE_POD = {"tensor": 2}
ROLE = "serving.atom.dev/role"
WORDS = "rank 1 of the tensor-parallel group on node 1 (chat-0-1) was killed by signal 9"


async def look(cluster: FakeCluster, seconds: float = 0.0) -> None:
    now = NOW + timedelta(seconds=seconds)
    await reconciler(cluster, now=now, site=SITE).reconcile(KEY)


async def with_groups(**changes: Any) -> FakeCluster:
    """`chat` in one group that was asked for at `NOW`."""
    cluster = cluster_with(parallelism=GROUP, **changes)
    await look(cluster)
    return cluster


def put_group(cluster: FakeCluster, *, ready: bool = True, ended: bool = False) -> None:
    """The pods of group 0, of the newest revision, and what their controller counts."""
    groups = cluster.find(LEADER_WORKER_SET, "chat")
    template = groups["spec"]["leaderWorkerTemplate"]
    for name, of in (("chat-0", "leaderTemplate"), ("chat-0-1", "workerTemplate")):
        is_ready = ready or (name != "chat-0" and not ended)
        metadata = {**template[of]["metadata"], "name": name, "namespace": KEY.namespace}
        status: dict[str, Any] = {
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(is_ready)},
            ]
        }
        if ended:
            state = {"terminated": {"reason": "Error", "exitCode": 1, "message": WORDS}}
            status["containerStatuses"] = [{"name": "engine", "restartCount": 0, "state": state}]
        cluster.put_pod({"metadata": metadata, "spec": {}, "status": status})
    count = int(ready)
    groups["status"] = {"replicas": 1, "readyReplicas": count, "updatedReplicas": count}


def refused_group(words: str, seconds: float) -> Manifest:
    """An Event of the LeaderWorkerSet's controller, so many seconds after `NOW`."""
    return {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "LeaderWorkerSet", "name": "chat"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": words,
        "lastTimestamp": (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def drop_pods(cluster: FakeCluster) -> None:
    for key in [key for key in cluster.objects if key[0] == POD]:
        del cluster.objects[key]


def selector(cluster: FakeCluster) -> dict[str, str]:
    return dict(cluster.find(SERVICE, "chat")["spec"]["selector"])


def rollout(cluster: FakeCluster) -> Manifest:
    return dict(cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["rollout"])


async def test_groups_that_never_become_ready_are_told_after_the_deadline() -> None:
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster, ready=False)
    await look(cluster, 59)
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"
    await look(cluster, 60)
    found = condition(cluster, "Progressing")
    assert (found["status"], found["reason"]) == ("False", "DeadlineExceeded")
    assert "no group became ready within 60 s" in found["message"]


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        "Failed to create worker statefulset for leader pod chat-0",
        'pods "chat-0" is forbidden: exceeded quota: team, requested: pods=1',
    ],
)
async def test_a_revision_of_groups_that_fails_gives_way_to_the_last_that_was_ready(
    refusal: str | None,
) -> None:
    """A refusal of the next group at the deadline is a consequence of the failure."""
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster)
    await look(cluster, 10)
    first = cluster.find(LEADER_WORKER_SET, "chat")["metadata"]["annotations"]
    good = first["serving.atom.dev/revision"]
    assert ready_records(cluster) == [f"chat-{good}"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 8})
    await look(cluster, 1000)
    put_group(cluster, ready=False, ended=True)
    await look(cluster, 1010)
    drop_pods(cluster)  # at the deadline the group is just being made anew
    if refusal is not None:
        cluster.create(EVENT, refused_group(refusal, 1055))
    await look(cluster, 1061)
    annotations = cluster.find(LEADER_WORKER_SET, "chat")["metadata"]["annotations"]
    assert annotations["serving.atom.dev/revision"] == good
    put_group(cluster)
    await look(cluster, 1070)
    degraded = condition(cluster, "Degraded")
    assert degraded["reason"] == "RolledBack"
    assert WORDS in degraded["message"]


async def test_a_deadline_that_ends_within_a_look_is_the_next_ones() -> None:
    """Told before it is acted upon it would take the words of the failure away."""
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster)
    await look(cluster, 10)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 8})
    await look(cluster, 1000)
    put_group(cluster, ready=False, ended=True)
    await look(cluster, 1010)
    seconds = itertools.chain((1059.8, 1059.9), itertools.repeat(1060.1))
    slow = replace(
        reconciler(cluster, site=SITE), clock=lambda: NOW + timedelta(seconds=next(seconds))
    )
    await slow.reconcile(KEY)
    assert condition(cluster, "Progressing")["reason"] != "DeadlineExceeded"
    await look(cluster, 1061)
    degraded = condition(cluster, "Degraded")
    assert degraded["reason"] == "RolledBack"
    assert WORDS in degraded["message"]


async def test_a_status_that_is_lost_takes_words_with_it_and_no_decision() -> None:
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster)
    await look(cluster, 10)
    good = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxNumSeqs": 8})
    await look(cluster, 1000)
    put_group(cluster, ready=False, ended=True)
    await look(cluster, 1010)
    assert WORDS in condition(cluster, "Degraded")["message"]
    del cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    drop_pods(cluster)
    await look(cluster, 1020)
    assert WORDS not in condition(cluster, "Degraded")["message"]
    put_group(cluster, ready=False, ended=True)
    await look(cluster, 1030)
    assert WORDS in condition(cluster, "Degraded")["message"]
    del cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    drop_pods(cluster)
    await look(cluster, 1061)
    assert condition(cluster, "Degraded")["reason"] == "RolledBack"
    assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"] == good


async def test_a_group_that_was_ready_once_and_is_lost_is_no_failed_rollout() -> None:
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster)
    await look(cluster, 10)
    await look(cluster, 20)
    put_group(cluster, ready=False)
    await look(cluster, 5000)
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"


async def test_a_failure_is_said_until_its_group_is_ready_again() -> None:
    cluster = await with_groups()
    put_group(cluster, ready=False, ended=True)
    await look(cluster, 5)
    before = {kind: condition(cluster, kind) for kind in ("Degraded", "Scheduled", "ModelLoaded")}
    assert WORDS in before["Degraded"]["message"]
    events = cluster.writes.count
    for step in range(3):
        drop_pods(cluster)
        await look(cluster, 10 + step)
        put_group(cluster, ready=False)  # made anew, and has not ended yet
        await look(cluster, 10.5 + step)
        after = {kind: condition(cluster, kind) for kind in before}
        assert {kind: item["status"] for kind, item in after.items()} == {
            kind: item["status"] for kind, item in before.items()
        }
        assert WORDS in after["Degraded"]["message"]
    assert events("apply Event/chat") == 0
    put_group(cluster)
    await look(cluster, 20)
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_a_worker_is_no_pod_that_has_loaded_the_model() -> None:
    cluster = await with_groups()
    put_group(cluster, ready=False)
    await look(cluster)
    assert condition(cluster, "ModelLoaded")["message"].startswith("0 of 1 pods have loaded")


async def test_a_group_that_is_made_anew_turns_nothing_while_it_has_no_pods() -> None:
    """Nobody sees a failure: somebody deletes its worker again and again."""
    cluster = await with_groups()
    put_group(cluster, ready=False)
    await look(cluster)
    before = condition(cluster, "ModelLoaded")["lastTransitionTime"]
    for step in range(3):
        drop_pods(cluster)
        await look(cluster, 10 + step)
        assert condition(cluster, "ModelLoaded")["reason"] == "NoPods"
        put_group(cluster, ready=False)
        await look(cluster, 10.5 + step)
    assert condition(cluster, "ModelLoaded")["lastTransitionTime"] == before


async def test_nothing_is_known_of_a_model_for_which_there_is_to_be_no_pod() -> None:
    cluster = cluster_with(replicas=0)
    await look(cluster)
    assert condition(cluster, "ModelLoaded")["status"] == "Unknown"


async def one_pod_serving(**changes: Any) -> FakeCluster:
    cluster = cluster_with(parallelism=ONE_POD, **changes)
    await look(cluster)
    finish_rollout(cluster)
    await look(cluster)
    return cluster


async def test_what_serves_stays_until_the_groups_are_ready() -> None:
    cluster = await one_pod_serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism=GROUP)
    for _ in range(2):
        await look(cluster)
        assert cluster.names(DEPLOYMENT) == cluster.names(LEADER_WORKER_SET) == ["chat"]
        assert ROLE not in selector(cluster), "the Deployment's pods are behind the Service"
        assert condition(cluster, "Available")["status"] == "True"
        assert condition(cluster, "Ready")["status"] == "False"
    assert "those before serve until they are ready" in rollout(cluster)["reason"]
    put_group(cluster)
    await look(cluster)
    assert cluster.names(DEPLOYMENT) == []
    assert selector(cluster)[ROLE] == "leader"
    await look(cluster)
    assert condition(cluster, "Ready")["status"] == "True"


async def test_groups_stay_until_one_pod_is_ready() -> None:
    cluster = await with_groups()
    put_group(cluster)
    await look(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism=ONE_POD)
    await look(cluster)
    assert cluster.names(DEPLOYMENT) == cluster.names(LEADER_WORKER_SET) == ["chat"]
    assert selector(cluster)[ROLE] == "leader"
    finish_rollout(cluster)
    await look(cluster)
    assert cluster.names(LEADER_WORKER_SET) == []
    assert ROLE not in selector(cluster)


async def test_what_serves_goes_first_where_its_devices_are_needed() -> None:
    accelerator = {"type": "amd", "product": "MI300X"}
    model = {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"}
    for nodes, kept in ((1, []), (4, ["chat"])):
        cluster = cluster_with(model=model, parallelism={"tensor": 8}, accelerator=accelerator)
        cluster.nodes = [gpu_node("a"), *(gpu_node(f"b{n}") for n in range(nodes - 1))]
        await look(cluster)
        finish_rollout(cluster)
        template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
        metadata = {**template["metadata"], "name": "chat-1", "namespace": "default"}
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        spec = {**template["spec"], "nodeName": "a"}
        running = {"metadata": metadata, "spec": spec, "status": {"conditions": ready}}
        cluster.put_pod({**running, "status": {**running["status"], "phase": "Running"}})
        await look(cluster)
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism={"tensor": 16, "nodes": 2})
        await look(cluster)
        assert cluster.names(LEADER_WORKER_SET) == ["chat"]
        assert (nodes, cluster.names(DEPLOYMENT)) == (nodes, kept)


async def test_words_of_a_group_that_is_made_anew_do_not_take_the_place_of_its_failure() -> None:
    cluster = await with_groups()
    put_group(cluster, ready=False, ended=True)
    await look(cluster)
    failed = condition(cluster, "Degraded")
    assert failed["status"] == "True"
    for name in ("chat-0", "chat-0-1"):
        del cluster.objects[POD, "default", name]
    cluster.create(
        EVENT, refused_group("Failed to create worker statefulset for leader pod chat-0", 5)
    )
    await look(cluster, 10)
    degraded = condition(cluster, "Degraded")
    assert (degraded["reason"], degraded["message"]) == (failed["reason"], failed["message"])
    assert "Failed to create worker" in condition(cluster, "Progressing")["message"]


async def test_what_serves_goes_when_its_successor_finds_no_node_beside_it() -> None:
    cluster = await one_pod_serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism=GROUP)
    await look(cluster)
    words = "0/1 nodes are available: 1 Insufficient memory."
    cluster.put_pod(unschedulable_pod(cluster, words, "chat-0", kind=LEADER_WORKER_SET))
    await look(cluster)
    assert cluster.names(DEPLOYMENT) == []


async def test_a_switch_that_fails_goes_back_to_the_kind_that_served() -> None:
    cluster = await one_pod_serving(rollout={"progressDeadlineSeconds": 60})
    before = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism=GROUP)
    await look(cluster, 100)
    put_group(cluster, ready=False)
    await look(cluster, 161)
    assert cluster.names(LEADER_WORKER_SET) == []
    after = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    assert after == before
    assert ROLE not in selector(cluster)
    drop_pods(cluster)
    finish_rollout(cluster)
    await look(cluster, 170)
    assert condition(cluster, "Degraded")["reason"] == "RolledBack"
    assert cluster.names(DEPLOYMENT) == ["chat"]
    assert cluster.names(LEADER_WORKER_SET) == []


async def test_groups_come_back_where_one_pod_could_not_take_over() -> None:
    cluster = await with_groups(rollout={"progressDeadlineSeconds": 60})
    put_group(cluster)
    await look(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", parallelism=ONE_POD)
    await look(cluster, 100)
    stored = cluster.find(DEPLOYMENT, "chat")
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    stored["status"] = {
        "observedGeneration": stored["metadata"]["generation"],
        "conditions": [{**late, "message": "timed out"}],
    }
    await look(cluster, 200)
    assert cluster.names(DEPLOYMENT) == []
    groups = cluster.find(LEADER_WORKER_SET, "chat")["spec"]["leaderWorkerTemplate"]
    assert groups["size"] == 2
    assert selector(cluster)[ROLE] == "leader"
