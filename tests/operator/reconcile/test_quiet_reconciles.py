"""A reconcile that finds everything as it should be writes nothing, and still sees every drift."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from atom_operator.domain import DEPLOYMENT, SERVICE, Kind
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import KEY, NOW, cluster_with, pod, reconciler
from tests.support.operator.fake_cluster import FakeCluster


async def test_a_second_reconcile_asks_for_no_write() -> None:
    cluster = cluster_with()
    same = reconciler(cluster)
    await same.reconcile(KEY)
    await same.reconcile(KEY)
    cluster.writes.clear()
    await same.reconcile(KEY)
    assert cluster.writes == []


async def test_progress_of_a_child_is_no_reason_to_write_it() -> None:
    cluster = cluster_with()
    same = reconciler(cluster)
    await same.reconcile(KEY)
    finish_rollout(cluster)
    cluster.writes.clear()
    await same.reconcile(KEY)
    assert "apply Deployment/chat" not in cluster.writes


async def test_what_a_controller_adds_to_a_child_is_no_reason_to_write_it() -> None:
    cluster = cluster_with()
    same = reconciler(cluster)
    await same.reconcile(KEY)
    metadata = cluster.find(DEPLOYMENT, "chat")["metadata"]
    metadata["annotations"]["deployment.kubernetes.io/revision"] = "1"
    cluster.writes.clear()
    await same.reconcile(KEY)
    assert cluster.writes == []
    metadata["labels"]["app.kubernetes.io/name"] = "mine"
    await same.reconcile(KEY)
    assert cluster.writes == ["apply Deployment/chat"]


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE], ids=lambda kind: kind.kind)
async def test_a_child_that_somebody_changed_is_put_right(kind: Kind) -> None:
    cluster = cluster_with()
    same = reconciler(cluster)
    await same.reconcile(KEY)
    await same.reconcile(KEY)
    labels = cluster.find(kind, "chat")["metadata"]["labels"]
    before = dict(labels)
    labels["app.kubernetes.io/name"] = "mine"
    cluster.writes.clear()
    await same.reconcile(KEY)
    assert cluster.writes == [f"apply {kind.kind}/chat"]
    assert cluster.find(kind, "chat")["metadata"]["labels"] == before


@pytest.mark.parametrize("replicas", [1, 2])
async def test_an_operator_that_starts_writes_nothing_that_is_as_it_should_be(
    replicas: int,
) -> None:
    cluster = cluster_with(replicas=replicas, networkPolicy={}, monitoring={"alerts": {}})
    await reconciler(cluster).reconcile(KEY)
    await reconciler(cluster).reconcile(KEY)
    cluster.writes.clear()
    await reconciler(cluster).reconcile(KEY)
    assert cluster.writes == []


def _add_a_label(cluster: FakeCluster) -> None:
    cluster.find(SERVICE, "chat")["spec"]["selector"]["mine"] = "yes"


def _add_an_argument(cluster: FakeCluster) -> None:
    (container,) = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]["containers"]
    container["args"].append("--mine")


def _take_the_mark(cluster: FakeCluster) -> None:
    del cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"]["serving.atom.dev/applied"]


@pytest.mark.parametrize(
    ("edit", "kind"),
    [(_add_a_label, SERVICE), (_add_an_argument, DEPLOYMENT), (_take_the_mark, DEPLOYMENT)],
)
async def test_an_operator_that_starts_puts_right_what_was_changed_meanwhile(
    edit: Callable[[FakeCluster], None], kind: Kind
) -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    edit(cluster)
    cluster.writes.clear()
    await reconciler(cluster).reconcile(KEY)
    assert cluster.writes == [f"apply {kind.kind}/chat"]


async def _ready_for(seconds: float) -> FakeCluster:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(KEY)
    serving = pod(cluster, podIP="10.0.0.7")
    for item in serving["status"]["conditions"]:
        if item["type"] == "Ready":
            item["lastTransitionTime"] = (NOW - timedelta(seconds=seconds)).isoformat()
    cluster.put_pod(serving)
    return cluster


@pytest.mark.parametrize(
    ("silent_seconds", "again"), [(0, 30), (20, 30), (100, 100), (100_000, 900)]
)
async def test_an_engine_that_serves_and_says_nothing_is_asked_ever_more_rarely(
    silent_seconds: float, again: float
) -> None:
    outcome = await reconciler(await _ready_for(silent_seconds)).reconcile(KEY)
    assert outcome.requeue_after_seconds == again
