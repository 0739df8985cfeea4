"""Whatever is cut off, refused, stale or missed, the end is the same: the three patterns of Sieve
(intermediate, stale and unobserved states), and an API server that is busy or in conflict.

Each history is played undisturbed first; then once more per write with a fault at that write.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError, classify
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    JOB,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Manifest,
)
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.rollouts import finish_rollout, own_pods
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.faulty_cluster import FaultyCluster, Killed
from tests.support.operator.jobs import report_config

Reconcile = Callable[[ClusterPort], Awaitable[None]]
History = Callable[[FakeCluster, Reconcile], Awaitable[None]]


async def reconcile(port: ClusterPort) -> None:
    await reconciler(port).reconcile(KEY)


def play_pods(cluster: FakeCluster) -> None:
    """The controllers of Jobs and Deployments and the kubelet do their part."""
    for name in cluster.names(JOB):
        job = cluster.find(JOB, name)
        if "status" not in job:
            report_config(cluster, job, TINY_CONFIG)  # which a download does not have to leave
    if (DEPLOYMENT, "default", "chat") not in cluster.objects:
        return
    finish_rollout(cluster)


async def settle(cluster: FakeCluster) -> None:
    """Until a reconcile changes nothing any more; more than a few rounds would be a loop."""
    for _ in range(6):
        play_pods(cluster)
        before = versions(cluster)
        await reconcile(cluster)
        if versions(cluster) == before:
            return
    raise AssertionError(f"still writing: {cluster.writes[-12:]}")


def versions(cluster: FakeCluster) -> dict[Any, str]:
    return {
        key: item["metadata"].get("resourceVersion", "") for key, item in cluster.objects.items()
    }


def outcome(cluster: FakeCluster) -> dict[str, Manifest]:
    """All that people and pods see. Events are best effort; versions, times and the names of what
    controllers make count writes. Of pods it is what they are made from."""
    result: dict[str, Manifest] = {}
    for (kind, _, name), item in cluster.objects.items():
        if kind in (EVENT, REPLICA_SET, POD):
            continue
        seen = copy.deepcopy(item)
        for field in ("resourceVersion", "uid", "creationTimestamp"):
            seen["metadata"].pop(field, None)
        result[f"{kind.kind}/{name}"] = seen
    made = [(item["metadata"]["annotations"], item["spec"]) for item in own_pods(cluster)]
    return {**result, "pods": {"made from": sorted(made, key=repr)}}


async def look_at_model(cluster: FakeCluster, step: Reconcile) -> None:
    """The shape is nowhere written: a Job has to find it out first."""
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model={"source": "hf://acme/private"})
    await step(cluster)


async def go_on_after_the_look(cluster: FakeCluster, step: Reconcile) -> None:
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model={"source": "hf://acme/private"})
    await reconcile(cluster)
    play_pods(cluster)
    await step(cluster)


async def fetch_weights(cluster: FakeCluster, step: Reconcile) -> None:
    changes: dict[str, Any] = {
        "model": {"source": "hf://Qwen/Qwen3-0.6B"},
        "cache": {"weights": {"claim": "models"}},
        "accelerator": {"type": "cpu", "memory": "16Gi"},
    }
    claim = {"spec": {"accessModes": ["ReadWriteMany"]}}
    cluster.create(VOLUME_CLAIM, {"metadata": {"name": "models", "namespace": "default"}, **claim})
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **changes)
    await step(cluster)


async def create(cluster: FakeCluster, step: Reconcile) -> None:
    await step(cluster)


async def update(cluster: FakeCluster, step: Reconcile) -> None:
    await settle(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await step(cluster)


async def scale_down(cluster: FakeCluster, step: Reconcile) -> None:
    await settle(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=1)
    await step(cluster)


async def become_invalid(cluster: FakeCluster, step: Reconcile) -> None:
    await settle(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"extraArgs": ["--model=x"]})
    await step(cluster)


async def drift(cluster: FakeCluster, step: Reconcile) -> None:
    await settle(cluster)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=9)
    del cluster.objects[SERVICE, "default", "chat"]
    await step(cluster)


HISTORIES = (
    create,
    update,
    scale_down,
    become_invalid,
    drift,
    look_at_model,
    go_on_after_the_look,
    fetch_weights,
)


async def undisturbed(history: History) -> tuple[dict[str, Manifest], int]:
    """The end of a history, and the writes of its last reconcile."""
    cluster, counted = cluster_with(replicas=2), 0

    async def step(inner: ClusterPort) -> None:
        nonlocal counted
        port = FaultyCluster(cluster)
        await reconcile(port)
        counted = port.writes

    await history(cluster, step)
    await settle(cluster)
    return outcome(cluster), counted


@pytest.mark.sampled(4)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
async def test_killed_after_any_of_its_writes_the_successor_ends_at_the_same_state(
    history: History,
) -> None:
    expected, writes = await undisturbed(history)
    assert writes > 0
    for write in range(1, writes + 1):
        cluster = cluster_with(replicas=2)

        async def dies(_: ClusterPort, cluster: FakeCluster = cluster, write: int = write) -> None:
            with pytest.raises(Killed):
                await reconcile(FaultyCluster(cluster, kill_after=write))

        await history(cluster, dies)
        await settle(cluster)
        assert outcome(cluster) == expected, f"after write {write} of {writes}"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("code", [409, 429, None])
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
async def test_a_busy_or_conflicting_api_server_only_delays(
    history: History, code: int | None
) -> None:
    expected, writes = await undisturbed(history)
    for write in range(1, writes + 1):
        cluster = cluster_with(replicas=2)
        error = classify(code, f"injected {code}")
        assert isinstance(error, TransientError)
        port = FaultyCluster(cluster, errors={write: error})

        async def disturbed(_: ClusterPort, port: FaultyCluster = port) -> None:
            try:
                await reconcile(port)
            except TransientError:
                await reconcile(port)  # as the queue does

        await history(cluster, disturbed)
        await settle(cluster)
        assert outcome(cluster) == expected, f"at write {write} of {writes}"


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
async def test_killed_again_and_again_it_still_gets_there(history: History) -> None:
    """Every successor manages one write more than the one before."""
    expected, writes = await undisturbed(history)
    cluster = cluster_with(replicas=2)

    async def dies_often(_: ClusterPort) -> None:
        for write in range(1, writes + 1):
            with suppress(Killed):  # towards the end there is less left to write
                await reconcile(FaultyCluster(cluster, kill_after=write))

    await history(cluster, dies_often)
    await settle(cluster)
    assert outcome(cluster) == expected


async def test_a_reconcile_on_old_reads_is_put_right_by_the_next() -> None:
    """Our reads are of the newest state; a proxy or a split brain may still serve an old one."""
    for old_state in range(3):
        cluster = cluster_with(replicas=2)
        snapshots = []
        for changes in ({}, {"engine": {"maxModelLen": 1024}}, {"replicas": 1}):
            cluster.change_spec(ATOM_DEPLOYMENT, "chat", **changes)
            await settle(cluster)
            snapshots.append(copy.deepcopy(cluster))
        expected = outcome(cluster)
        await reconcile(FaultyCluster(cluster, stale=snapshots[old_state]))
        assert cluster.names(DEPLOYMENT) == cluster.names(SERVICE) == ["chat"]
        await settle(cluster)
        after = outcome(cluster)
        if old_state < 2:
            # It went back and forth once, which the generation counts.
            for result in (after, expected):
                del result["Deployment/chat"]["metadata"]["generation"]
                del result["Deployment/chat"]["status"]["observedGeneration"]
        assert after == expected


async def test_a_namesake_made_anew_gets_children_of_its_own() -> None:
    """The operator slept through deletion and creation, and then even read the old object."""
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    expected, before = outcome(cluster), copy.deepcopy(cluster)
    old_uid = cluster.find(ATOM_DEPLOYMENT, "chat")["metadata"]["uid"]
    cluster.remove_with_children("chat")
    cluster.create(ATOM_DEPLOYMENT, atom_deployment(replicas=2))
    new_uid = cluster.find(ATOM_DEPLOYMENT, "chat")["metadata"]["uid"]
    assert new_uid != old_uid
    await reconcile(FaultyCluster(cluster, stale=before))
    collect_garbage(cluster)
    await settle(cluster)
    for (kind, _, _), item in cluster.objects.items():
        if kind in (REPLICA_SET, POD):
            continue  # which are the Deployment's
        owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences", ())]
        assert owners in ([], [new_uid])
    assert outcome(cluster).keys() == expected.keys()


async def test_changes_that_nobody_announced_are_all_found_by_one_look() -> None:
    cluster = cluster_with(replicas=2)
    await settle(cluster)
    expected = outcome(cluster)
    # There and back, a child gone, one changed, one that is not wanted: no event arrived.
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=5)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=2)
    del cluster.objects[DISRUPTION_BUDGET, "default", "chat"]
    cluster.change_spec(SERVICE, "chat", ports=[{"name": "http", "port": 1}])
    cluster.change_spec(DEPLOYMENT, "chat", replicas=0)
    await settle(cluster)
    after = outcome(cluster)
    for name in (
        "AtomDeployment/chat",
        "Deployment/chat",
        "Service/chat",
        "PodDisruptionBudget/chat",
    ):
        for result in (after, expected):
            result[name]["metadata"].pop("generation")
            status: dict[str, Any] = result[name].get("status") or {}
            status.pop("observedGeneration", None)
            for condition in status.get("conditions", ()):
                condition.pop("observedGeneration", None)
    assert after == expected


def collect_garbage(cluster: FakeCluster) -> None:
    """What the garbage collector does with objects whose owner is gone."""
    while True:
        alive = {item["metadata"].get("uid") for item in cluster.objects.values()}
        owners = {
            key: {owner["uid"] for owner in item["metadata"].get("ownerReferences", ())}
            for key, item in cluster.objects.items()
        }
        gone = [key for key, uids in owners.items() if uids and not alive & uids]
        if not gone:
            return
        for key in gone:
            del cluster.objects[key]
