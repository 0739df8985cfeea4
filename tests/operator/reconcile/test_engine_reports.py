"""What the engines report reaches the status: how far they load, and what they really hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    Capacity,
    DraftCounts,
    EngineHealth,
    EngineLoad,
    EngineOutlook,
    LoadProgress,
)
from atom_operator.plugin.why import Seen, causes
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
from tests.support.operator.jobs import fail, only_job

IP = "10.0.0.7"
MIB, GIB = 2**20, 2**30


def planned() -> Capacity:
    capacity = plan().capacity.capacity
    assert capacity is not None
    return capacity


def capacity_of(cluster: FakeCluster) -> dict[str, Any]:
    return dict(cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["capacity"])


async def serving(engines: FakeEngines, **changes: Any) -> FakeCluster:
    """One ready pod of the latest revision."""
    return await serve(cluster_with(**changes), engines)


async def serve(cluster: FakeCluster, engines: FakeEngines) -> FakeCluster:
    await reconciler(cluster, engines=engines).reconcile(KEY)
    finish_rollout(cluster)
    cluster.put_pod(revised(cluster))
    await reconciler(cluster, engines=engines).reconcile(KEY)
    return cluster


def revised(cluster: FakeCluster, *, ready: bool = True) -> dict[str, Any]:
    return pod(cluster, ready=ready, podIP=IP)


@pytest.mark.parametrize(
    ("factor", "status", "reason"),
    [
        (1.0, "True", "MatchesPlan"),
        (0.95, "True", "MatchesPlan"),
        (0.5, "False", "CapacityDrift"),
        (1.3, "False", "CapacityDrift"),
    ],
)
async def test_the_engines_own_numbers_are_compared_with_the_plan(
    factor: float, status: str, reason: str
) -> None:
    tokens = int(planned().kv_tokens * factor)
    engines = FakeEngines(capacities={IP: replace(planned(), kv_tokens=tokens)})
    cluster = await serving(engines)
    matched = condition(cluster, "CapacityMatched")
    assert (matched["status"], matched["reason"]) == (status, reason)
    assert f"measured {tokens}" in matched["message"]
    capacity = capacity_of(cluster)
    assert capacity["kvTokens"] == planned().kv_tokens
    assert capacity["confidence"] == "Predicted"
    assert capacity["actual"]["kvTokens"] == tokens
    assert capacity["actual"]["driftPercent"] == round(100 * (factor - 1))
    assert condition(cluster, "Ready")["status"] == "True"


async def test_a_drift_by_a_wrong_config_says_so() -> None:
    wrong = replace(planned(), kv_tokens=100, kv_bytes_per_token=4096)
    cluster = await serving(FakeEngines(capacities={IP: wrong}))
    assert "check that spec.model.config" in condition(cluster, "CapacityMatched")["message"]


async def test_an_engine_is_asked_once_per_revision() -> None:
    engines = FakeEngines(capacities={IP: planned()})
    cluster = await serving(engines)
    writes = list(cluster.writes)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert engines.asked == [f"{IP}/server_info"]
    assert "status" not in cluster.writes[len(writes) :]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconciler(cluster, engines=engines).reconcile(KEY)
    # The pod is still of the former revision, whose numbers say nothing about the new one.
    assert condition(cluster, "CapacityMatched")["reason"] == "NotMeasured"
    assert engines.asked == [f"{IP}/server_info"]
    cluster.put_pod(revised(cluster))
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert engines.asked == [f"{IP}/server_info"] * 2


async def test_a_measurement_that_cannot_be_read_back_is_made_again() -> None:
    engines = FakeEngines(capacities={IP: planned()})
    cluster = await serving(engines)
    del cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["capacity"]["actual"]["blocks"]
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert capacity_of(cluster)["actual"]["blocks"] == planned().num_blocks


async def test_without_a_plan_the_engine_fills_the_capacity() -> None:
    engines = FakeEngines(capacities={IP: planned()})
    cluster = cluster_with(model={"source": "hf://acme/private-model"})
    await reconciler(cluster).reconcile(KEY)
    fail(cluster, only_job(cluster, "inspect"), "error: no network", NOW)
    await serve(cluster, engines)
    assert condition(cluster, "CapacityMatched")["reason"] == "MeasuredWithoutPlan"
    capacity = capacity_of(cluster)
    assert (capacity["confidence"], capacity["kvTokens"]) == ("Measured", planned().kv_tokens)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert capacity_of(cluster) == capacity


async def test_a_ready_engine_that_does_not_answer_is_asked_again_later() -> None:
    cluster = await serving(FakeEngines())
    outcome = await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityMatched")["reason"] == "NotMeasured"
    assert outcome.requeue_after_seconds is not None


async def test_a_loading_engine_says_how_far_it_is() -> None:
    engines = FakeEngines(healths={IP: EngineHealth("starting", "loading weights 40%")})
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster, ready=0)
    cluster.put_pod(revised(cluster, ready=False))
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    loaded = condition(cluster, "ModelLoaded")
    assert (loaded["status"], loaded["reason"]) == ("False", "Loading")
    assert "pod chat-1 is starting: loading weights 40%" in loaded["message"]
    assert outcome.requeue_after_seconds == 10
    engines.healths[IP] = EngineHealth("dead", "the engine process ended")
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert condition(cluster, "ModelLoaded")["reason"] == "EngineNotReady"
    del engines.healths[IP]
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert condition(cluster, "ModelLoaded")["reason"] == "EngineSilent"


@pytest.mark.parametrize(
    ("progress", "reason", "words"),
    [
        (
            LoadProgress("loading weights", 0.43, 16 * GIB, 210 * MIB, 1.0),
            "LoadingWeights",
            "loading weights 43% of 16 GiB at 210 MiB/s, about 44 s left",
        ),
        (
            LoadProgress("loading weights", 0.43, 16 * GIB, 1 * MIB, 312.0, stalled=True),
            "LoadStalled",
            "has made no progress for 5 min at: loading weights 43%",
        ),
        (LoadProgress("capturing decode graphs", 0.5), "Loading", "capturing decode graphs 50%"),
    ],
    ids=["slow", "stalled", "other phase"],
)
async def test_a_stalled_load_is_told_from_a_slow_one(
    progress: LoadProgress, reason: str, words: str
) -> None:
    engines = FakeEngines(healths={IP: EngineHealth("starting", "loading", progress)})
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    cluster.put_pod(revised(cluster, ready=False))
    await reconciler(cluster, engines=engines).reconcile(KEY)
    loaded = condition(cluster, "ModelLoaded")
    assert (loaded["status"], loaded["reason"]) == ("False", reason)
    assert words in loaded["message"]


async def test_only_a_few_of_many_loading_pods_are_asked() -> None:
    engines = FakeEngines()
    cluster = cluster_with(replicas=9)
    await reconciler(cluster).reconcile(KEY)
    for number in range(9):
        cluster.put_pod(pod(cluster, f"chat-{number}", ready=False, podIP=f"10.0.0.{number}"))
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert len(engines.asked) == 3


NGRAM = {"speculative": {"method": "ngram"}}


def speculation(cluster: FakeCluster) -> dict[str, Any] | None:
    found: dict[str, Any] | None = cluster.find(ATOM_DEPLOYMENT, "chat")["status"].get(
        "speculation"
    )
    return found


async def test_how_drafts_do_is_looked_at_again_and_written_when_it_shows() -> None:
    engines = FakeEngines(capacities={IP: planned()}, counts={IP: DraftCounts(0, 0, 0)})
    cluster = await serving(engines, engine=NGRAM)
    assert speculation(cluster) is None, "nothing was drafted"
    engines.counts[IP] = DraftCounts(10, 40, 12)
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    assert speculation(cluster) == {"acceptedPercent": 30, "tokensPerStep": 2.2}
    assert outcome.requeue_after_seconds == 60
    writes = list(cluster.writes)
    engines.counts[IP] = DraftCounts(1000, 4000, 1210)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert cluster.writes == writes, "as before, when rounded"


async def test_how_drafts_did_stays_said_until_another_revision_runs() -> None:
    engines = FakeEngines(capacities={IP: planned()}, counts={IP: DraftCounts(10, 40, 12)})
    cluster = await serving(engines, engine=NGRAM)
    del engines.counts[IP]
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert speculation(cluster) == {"acceptedPercent": 30, "tokensPerStep": 2.2}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={})
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert speculation(cluster) is None


async def test_drafts_are_the_sum_over_pods_and_asked_of_a_few() -> None:
    engines = FakeEngines(capacities={IP: planned()})
    cluster = await serving(engines, engine=NGRAM, replicas=12)
    for number in range(10, 22):
        extra = revised(cluster)
        extra["metadata"]["name"], extra["status"]["podIP"] = f"chat-{number}", f"10.0.1.{number}"
        cluster.put_pod(extra)
        engines.counts[f"10.0.1.{number}"] = DraftCounts(10, 50, number)
    engines.asked.clear()
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert engines.asked == [f"{IP}/metrics", *(f"10.0.1.{n}/metrics" for n in range(10, 17))]
    assert speculation(cluster) == {"acceptedPercent": 26, "tokensPerStep": 2.3}


async def test_drafts_and_load_of_a_pod_are_read_at_once() -> None:
    """An autoscaler may end one of the pods, so that their loads are asked for, too."""
    engines = FakeEngines(capacities={IP: planned()}, counts={IP: DraftCounts(10, 40, 12)})
    scaling = {"method": "HPA", "maxReplicas": 3}
    cluster = await serving(engines, engine=NGRAM, replicas=2, autoscaling=scaling)
    other = revised(cluster)
    other["metadata"]["name"], other["status"]["podIP"] = "chat-2", "10.0.1.2"
    cluster.put_pod(other)
    engines.counts["10.0.1.2"] = DraftCounts(10, 40, 12)
    engines.loads = {IP: EngineLoad(9, 0), "10.0.1.2": EngineLoad(0, 0)}
    engines.asked.clear()
    cluster.writes.clear()
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert sorted(engines.asked) == sorted([f"{IP}/metrics", "10.0.1.2/metrics"])
    assert speculation(cluster) == {"acceptedPercent": 30, "tokensPerStep": 2.2}
    assert any(write.startswith("apply Pod/") for write in cluster.writes)


async def test_engines_that_do_not_speculate_are_not_asked_for_drafts() -> None:
    engines = FakeEngines(capacities={IP: planned()}, counts={IP: DraftCounts(10, 40, 12)})
    cluster = await serving(engines)
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    assert f"{IP}/metrics" not in engines.asked
    assert speculation(cluster) is None
    assert outcome.requeue_after_seconds is None


async def test_targets_of_latency_are_compared_with_what_the_engines_predict() -> None:
    late = EngineOutlook(9.0, 0.01, "sequences", None, (), ())
    cluster, engines = cluster_with(slo={"ttft": "2s"}), FakeEngines(outlooks={IP: late})
    planned = plan(slo={"ttft": "2s"}).capacity.capacity
    assert planned is not None
    engines.capacities[IP] = planned
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert condition(cluster, "SloMet")["status"] == "Unknown"
    finish_rollout(cluster)
    cluster.put_pod(pod(cluster, podIP=IP))
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    assert outcome.requeue_after_seconds == 60.0
    missed = condition(cluster, "SloMet")
    assert (missed["status"], missed["reason"]) == ("False", "SequencesShort")
    found = causes(Seen(cluster.find(ATOM_DEPLOYMENT, "chat")))
    (cause,) = [each for each in found if each.reason.startswith("SloMet")]
    assert "maxNumSeqs" in cause.message
    engines.outlooks[IP] = EngineOutlook(0.5, 0.01, "nothing", None, (), ())
    await reconciler(cluster, engines=engines).reconcile(KEY)
    assert condition(cluster, "SloMet")["status"] == "True"
    assert condition(cluster, "Ready")["status"] == "True"
