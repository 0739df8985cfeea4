"""What an engine measured improves the next plan of its kind, in bounds, and restarts nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    Capacity,
    ObjectKey,
    StartupTimes,
)
from atom_operator.domain.replica_capacity import MemoryOfDevice
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    condition,
    plan,
    pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

IP = "10.0.0.7"
CONFIG = {
    **TINY_CONFIG,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
# A model whose KV cache is bounded by memory, so that memory shows in tokens.
WIDE: dict[str, Any] = {
    "model": {"source": "path:///models/wide", "config": CONFIG},
    "accelerator": {"type": "cpu", "memory": "12Gi"},
    "engine": {"maxNumBatchedTokens": 2048, "maxNumSeqs": 16, "maxModelLen": 8192},
}
SHORTER = {**WIDE["engine"], "maxModelLen": 4096}


def measured(changes: dict[str, Any], factor: float, **more: Any) -> Capacity:
    """What an engine reports whose reserve is `factor` times the predicted one."""
    planned = plan(**changes).capacity.capacity
    assert planned is not None
    reserve = int(planned.device.reserve_bytes * factor)
    missing = (reserve - planned.device.reserve_bytes) // planned.kv_bytes_per_token
    tokens = planned.kv_tokens - missing
    device = replace(planned.device, reserve_bytes=reserve)
    return replace(planned, device=device, kv_tokens=tokens, **more)


async def started(factor: float, **more: Any) -> tuple[FakeCluster, FakeEngines]:
    engines = FakeEngines(capacities={IP: measured(WIDE, factor, **more)})
    cluster = cluster_with(**WIDE)
    await serve(cluster, engines)
    return cluster, engines


async def serve(cluster: FakeCluster, engines: FakeEngines) -> None:
    await reconciler(cluster, engines=engines).reconcile(KEY)
    finish_rollout(cluster)
    cluster.put_pod(pod(cluster, podIP=IP))
    for _ in range(2):
        await reconciler(cluster, engines=engines).reconcile(KEY)


def versions(cluster: FakeCluster) -> dict[Any, str]:
    return {
        key: item["metadata"]["resourceVersion"]
        for key, item in cluster.objects.items()
        if key[0] != POD
    }


def capacity(cluster: FakeCluster, name: str = "chat") -> dict[str, Any]:
    return dict(cluster.find(ATOM_DEPLOYMENT, name)["status"]["capacity"])


def evidence(cluster: FakeCluster) -> list[dict[str, Any]]:
    text = cluster.find(CONFIG_MAP, "chat-learned")["data"]["evidence.json"]
    return list(json.loads(text))


async def test_the_next_plan_is_corrected_and_the_running_one_keeps_its_drift() -> None:
    cluster, engines = await started(3.0)
    assert condition(cluster, "CapacityMatched")["reason"] == "CapacityDrift"
    assert capacity(cluster)["confidence"] == "Predicted"
    first = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"]
    changes = {**WIDE, "engine": SHORTER}
    engines.capacities[IP] = measured(changes, 3.0)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=SHORTER)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    now = capacity(cluster)
    assert (now["confidence"], now["correctedBy"]) == ("Corrected", first)
    assert abs(now["kvTokens"] - measured(changes, 3.0).kv_tokens) <= 16
    assert (
        f"corrected by what revision {first} measured"
        in (condition(cluster, "CapacityFits")["message"])
    )
    plan_json = json.loads(cluster.find(CONFIG_MAP, "chat-plan")["data"]["plan.json"])
    assert plan_json["capacity"]["evidence"]["revision"] == first
    await serve(cluster, engines)
    assert condition(cluster, "CapacityMatched")["reason"] == "MatchesPlan"
    assert [item["revision"] for item in evidence(cluster)] == [first], "it held: nothing to learn"


async def test_learning_restarts_nothing_and_settles() -> None:
    cluster, engines = await started(3.0, startup=StartupTimes(4000.0, 3900.0, 10**9))
    template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    writes = len(cluster.writes)
    before = versions(cluster)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == template
    assert "status" not in cluster.writes[writes:]
    assert versions(cluster) == before


async def test_a_slow_start_gives_the_next_pods_more_time() -> None:
    cluster, engines = await started(1.0, startup=StartupTimes(4000.0, 3900.0, 10**9))

    def budget() -> int:
        container = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"][0]
        args = container["args"]
        return int(args[args.index("--startup-budget-seconds") + 1])

    before = budget()
    assert before < 1000
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=SHORTER)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert budget() > 2 * 3900


async def test_a_correction_is_bounded() -> None:
    cluster, engines = await started(40.0)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=SHORTER)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    predicted = plan(**{**WIDE, "engine": SHORTER}).capacity.capacity
    assert predicted is not None
    fits = condition(cluster, "CapacityFits")
    reserve = predicted.device.reserve_bytes
    bounded = predicted.kv_tokens - 3 * reserve // predicted.kv_bytes_per_token
    if fits["status"] == "True":
        assert abs(capacity(cluster)["kvTokens"] - bounded) <= 16
    else:
        assert bounded < 4096, "four times the reserve leaves less than one sequence"


async def test_another_image_begins_anew() -> None:
    cluster, engines = await started(3.0)
    cluster.change_spec(
        ATOM_DEPLOYMENT, "chat", engine={**WIDE["engine"], "image": "registry.test/atom:2"}
    )
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert capacity(cluster)["confidence"] == "Predicted"


async def test_another_deployment_of_the_same_kind_profits() -> None:
    cluster, engines = await started(3.0)
    cluster.create(ATOM_DEPLOYMENT, atom_deployment("code", **WIDE))
    await reconciler(cluster, engines=engines).reconcile(ObjectKey("default", "code"))
    assert capacity(cluster, "code")["confidence"] == "Corrected"
    assert capacity(cluster, "code")["kvTokens"] < capacity(cluster)["kvTokens"]


@pytest.mark.parametrize(
    "odd",
    [
        {"weights_bytes": 10},
        {"kv_bytes_per_token": 4096},
        {"device": MemoryOfDevice(10**10, reserve_bytes=0)},
        {"device": MemoryOfDevice(0, reserve_bytes=10**8)},
    ],
    ids=["other weights", "other shape", "no reserve", "no total"],
)
async def test_numbers_of_another_model_or_an_older_engine_teach_nothing(
    odd: dict[str, Any],
) -> None:
    engines = FakeEngines(capacities={IP: replace(measured(WIDE, 3.0), **odd)})
    cluster = cluster_with(**WIDE)
    await serve(cluster, engines)
    assert cluster.names(CONFIG_MAP) == ["chat-plan"]


@pytest.mark.parametrize("text", ["no json", "[1]", '[{"key": "k"}]', "{}"])
async def test_a_record_in_disorder_is_left_aside(text: str) -> None:
    cluster, engines = await started(3.0)
    cluster.find(CONFIG_MAP, "chat-learned")["data"]["evidence.json"] = text
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=SHORTER)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert capacity(cluster)["confidence"] == "Predicted"
    assert condition(cluster, "Accepted")["status"] == "True"
