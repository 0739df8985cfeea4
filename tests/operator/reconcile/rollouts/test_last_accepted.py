"""A spec that is held back keeps its pods from starting, and nothing else: what serves is looked
after as before, by the last spec that was carried out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
)
from atom_operator.integration_values import Site
from atom_operator.kinds import AUTOSCALER, LEADER_WORKER_SET, NETWORK_POLICY
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    gpu_node,
    reconciler,
)
from tests.support.operator.cluster_life import BAD, ClusterLife
from tests.support.operator.fake_cluster import FakeCluster

REFUSED: Mapping[str, Any] = {"engine": {"extraArgs": ["--model=x"]}}
TOO_LARGE: Mapping[str, Any] = {"accelerator": {"type": "cpu", "memory": "512Mi"}}
UNDOWNLOADED: Mapping[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B"},
    "cache": {"weights": {"claim": "models"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
}
HELD_BACK = pytest.mark.parametrize(
    "change", [REFUSED, TOO_LARGE, UNDOWNLOADED], ids=["refused", "too large", "not downloaded"]
)


async def held_back(change: Mapping[str, Any], **spec: Any) -> FakeCluster:
    """`chat` serves, and its next spec cannot be carried out."""
    cluster = cluster_with(**spec)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **change)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "False"
    return cluster


@HELD_BACK
async def test_a_service_that_somebody_deletes_comes_back(change: Mapping[str, Any]) -> None:
    cluster = await held_back(change, networkPolicy={})
    before = copy.deepcopy(cluster.find(DEPLOYMENT, "chat")["spec"])
    del cluster.objects[SERVICE, "default", "chat"]
    del cluster.objects[NETWORK_POLICY, "default", "chat"]
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(SERVICE) == ["chat"]
    assert cluster.names(NETWORK_POLICY) == ["chat"]
    assert cluster.find(DEPLOYMENT, "chat")["spec"] == before


@HELD_BACK
async def test_the_number_of_replicas_is_still_the_specs(change: Mapping[str, Any]) -> None:
    cluster = await held_back(change)
    template = copy.deepcopy(cluster.find(DEPLOYMENT, "chat")["spec"]["template"])
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=3)
    await reconciler(cluster).reconcile(KEY)
    stored = cluster.find(DEPLOYMENT, "chat")["spec"]
    assert (stored["replicas"], stored["template"]) == (3, template)
    assert cluster.names(DISRUPTION_BUDGET) == ["chat"]


@HELD_BACK
async def test_an_edit_of_the_pods_that_run_is_undone(change: Mapping[str, Any]) -> None:
    cluster = await held_back(change)
    template = copy.deepcopy(cluster.find(DEPLOYMENT, "chat")["spec"]["template"])
    edited = copy.deepcopy(template)
    edited["spec"]["containers"][0]["image"] = "registry.test/atom:edited"
    cluster.change_spec(DEPLOYMENT, "chat", template=edited)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == template


@HELD_BACK
async def test_a_workload_that_somebody_deletes_runs_again(change: Mapping[str, Any]) -> None:
    cluster = await held_back(change, replicas=2)
    before = copy.deepcopy(cluster.find(DEPLOYMENT, "chat")["spec"])
    del cluster.objects[DEPLOYMENT, "default", "chat"]
    await reconciler(cluster).reconcile(KEY)
    after = cluster.find(DEPLOYMENT, "chat")["spec"]
    assert after["template"] == before["template"]
    assert after["replicas"] == 2


@HELD_BACK
async def test_it_is_at_rest(change: Mapping[str, Any]) -> None:
    cluster = await held_back(change, networkPolicy={}, monitoring={"dashboard": {}})
    await reconciler(cluster).reconcile(KEY)
    before = copy.deepcopy(cluster.objects)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.objects == before


async def test_an_autoscaler_keeps_the_number_and_its_bound() -> None:
    accelerator = {"type": "amd", "product": "MI300X"}
    autoscaling = {"maxReplicas": 12, "method": "HPA"}
    cluster = cluster_with(accelerator=accelerator, autoscaling=autoscaling)
    cluster.nodes = [gpu_node("a", 4)]
    for _ in range(3):
        await reconciler(cluster).reconcile(KEY)
        finish_rollout(cluster)
    cluster.change_spec(DEPLOYMENT, "chat", replicas=3)
    finish_rollout(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **REFUSED)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"] == 3
    assert cluster.find(AUTOSCALER, "chat")["spec"]["maxReplicas"] == 4


async def test_a_spec_that_was_never_carried_out_starts_nothing() -> None:
    cluster = cluster_with(**REFUSED)
    await reconciler(cluster).reconcile(KEY)
    assert cluster.names(DEPLOYMENT) == []
    assert cluster.names(SERVICE) == []


async def test_what_a_site_no_longer_allows_is_still_looked_after() -> None:
    """The chart lost its default image: nothing new may start, and what runs has its image."""
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    del cluster.objects[SERVICE, "default", "chat"]
    await reconciler(cluster, images={}).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "NoEngineImage"
    assert cluster.names(SERVICE) == ["chat"]


async def test_a_refused_change_of_a_group_still_selects_its_leaders() -> None:
    site = Site(engine_tensor_parallel=16, engine_multi_node=True)
    cluster = cluster_with(
        model={"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        accelerator={"type": "amd", "product": "MI300X"},
        parallelism={"tensor": 16, "nodes": 2},
    )
    await reconciler(cluster, site=site).reconcile(KEY)
    assert cluster.names(LEADER_WORKER_SET) == ["chat"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **REFUSED)
    await reconciler(cluster, site=site).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "False"
    selector = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["selector"]
    assert selector.endswith("serving.atom.dev/role=leader")


async def test_one_record_of_the_spec_is_kept() -> None:
    cluster = cluster_with()
    for length in (1024, 512):
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": length})
        await reconciler(cluster).reconcile(KEY)
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=2)  # which it does not hold
        await reconciler(cluster).reconcile(KEY)
    records = [
        cluster.find(CONTROLLER_REVISION, n)["data"] for n in cluster.names(CONTROLLER_REVISION)
    ]
    (data,) = [each for each in records if "spec" in each]
    (late,) = [each["revisionSpec"] for each in records if "spec" not in each]
    assert late["spec"]["engine"] == {"maxModelLen": 1024}  # whose pods may still come
    assert data["spec"]["engine"] == {"maxModelLen": 512}
    assert "replicas" not in data["spec"]


async def test_a_rollout_that_waits_for_its_own_old_pods_is_freed() -> None:
    """The spare pod of a surge finds no node once there are more replicas than were planned for."""
    cluster = cluster_with(accelerator={"type": "amd", "product": "MI300X"})
    life = ClusterLife(cluster, {"a": 2, "b": 2})
    await reconciler(cluster).reconcile(KEY)
    life.step()
    life.step()
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=4, **REFUSED)
    for _ in range(8):
        await reconciler(cluster).reconcile(KEY)
        life.step()
    assert condition(cluster, "Accepted")["status"] == "False"
    assert len(life.serving) == 4
    assert len(life.pods) == 4


async def test_a_rollout_that_fails_while_its_successor_is_refused_is_rolled_back() -> None:
    cluster = cluster_with()
    life = ClusterLife(cluster)
    for _ in range(3):
        await reconciler(cluster).reconcile(KEY)
        life.step()
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"image": f"registry.test/atom:{BAD}"})
    await reconciler(cluster).reconcile(KEY)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **REFUSED)
    for _ in range(10):
        await reconciler(cluster).reconcile(KEY)
        life.step()
    (container,) = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"]
    assert BAD not in container["image"]
    assert condition(cluster, "Degraded")["reason"] == "RolledBack"
