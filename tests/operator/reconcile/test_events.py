"""Events tell moments: one per flip of a condition, after the status, counted and not repeated."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import ATOM_DEPLOYMENT, EVENT
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

TOO_SMALL = {"type": "cpu", "memory": "512Mi"}
ENOUGH = {"type": "cpu"}


def events(cluster: FakeCluster) -> dict[tuple[str, str], int]:
    """Count of each event by type and reason."""
    found: list[Any] = [item for (kind, _, _), item in cluster.objects.items() if kind == EVENT]
    return {(item["type"], item["reason"]): item["count"] for item in found}


async def become_ready(cluster: FakeCluster) -> None:
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)


async def test_creation_alone_is_no_event_and_serving_is_one() -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    assert events(cluster) == {}
    await become_ready(cluster)
    assert events(cluster)["Normal", "Serving"] == 1
    assert all(kind == "Normal" for kind, _ in events(cluster))


async def test_a_reconcile_without_a_flip_writes_no_event() -> None:
    cluster = cluster_with()
    await become_ready(cluster)
    before = list(cluster.writes)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=1)  # a new generation and nothing else
    await reconciler(cluster).reconcile(KEY)
    assert [write for write in cluster.writes[len(before) :] if "Event" in write] == []


async def test_the_same_flip_again_counts_up_one_event() -> None:
    cluster = cluster_with()
    await become_ready(cluster)
    for minutes in (1, 2):
        later = NOW + timedelta(minutes=minutes)
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", accelerator=TOO_SMALL)
        await reconciler(cluster, now=later).reconcile(KEY)
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", accelerator=ENOUGH)
        await reconciler(cluster, now=later).reconcile(KEY)
    assert events(cluster)["Warning", "WeightsDoNotFit"] == 2
    (found,) = [
        item
        for (kind, _, _), item in cluster.objects.items()
        if kind == EVENT and item["reason"] == "WeightsDoNotFit"
    ]
    assert found["firstTimestamp"] == "2026-01-02T03:05:05Z"
    assert found["lastTimestamp"] == "2026-01-02T03:06:05Z"
    assert found["message"].startswith("CapacityFits=False: ")
    parent = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert found["involvedObject"]["uid"] == parent["metadata"]["uid"]


async def test_a_refusal_at_first_sight_is_a_warning_after_the_status() -> None:
    cluster = cluster_with(accelerator=TOO_SMALL)
    await reconciler(cluster).reconcile(KEY)
    assert events(cluster) == {("Warning", "WeightsDoNotFit"): 1}
    assert cluster.writes[0] == "status"
    assert cluster.writes[1].startswith("apply Event/chat.")


async def test_an_event_that_cannot_be_written_fails_nothing() -> None:
    cluster = cluster_with(accelerator=TOO_SMALL)
    cluster.fail_on(2, TransientError("the API server is busy"))
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["reason"] == "WeightsDoNotFit"
    assert events(cluster) == {}
