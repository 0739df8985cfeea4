"""A Job whose pod has a sidecar: the work that is done counts, whatever goes on beside it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from atom.entrypoints.inspect_model import pack
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, JOB, Manifest
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    TINY_CONFIG,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.jobs import forget_pods, job_pod, only_job

WEIGHTS: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"},
    "cache": {"weights": {"claim": "models"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
}
UNKNOWN: dict[str, Any] = {"model": {"source": "hf://acme/private"}}
RUNS = {"running": {"startedAt": "2026-01-02T03:00:00Z"}}


def ended(code: int, message: str = "") -> dict[str, Any]:
    found = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
    return {"terminated": {**found, "finishedAt": NOW.strftime("%Y-%m-%dT%H:%M:%SZ")}}


def beside_a_proxy(cluster: FakeCluster, job: Manifest, work: Any, proxy: Any = RUNS) -> None:
    """The Job's pod with an injected proxy, which is listed first as its webhook puts it."""
    statuses = [
        {"name": "istio-proxy", "ready": "running" in proxy, "state": proxy},
        {"name": "prepare", "ready": False, "state": work},
    ]
    job_pod(cluster, job, phase="Running", containerStatuses=statuses)


async def reconcile(cluster: FakeCluster, minutes: int = 0) -> None:
    await reconciler(cluster, NOW + timedelta(minutes=minutes)).reconcile(KEY)


async def test_weights_that_are_there_are_served_and_the_sidecar_is_ended() -> None:
    cluster = cluster_with(**WEIGHTS)
    await reconcile(cluster)
    beside_a_proxy(cluster, only_job(cluster, "weights"), ended(0, '{"commit": "c0ffee"}'))
    await reconcile(cluster)
    assert cluster.names(DEPLOYMENT) == ["chat"]
    job = only_job(cluster, "weights")
    assert job["spec"]["suspend"] is True, "its controller then deletes the pod"
    forget_pods(cluster)
    for changes in ({"maxModelLen": 1024}, {"image": "registry.test/atom:2"}):
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine=changes)
        await reconcile(cluster)
    assert only_job(cluster, "weights")["metadata"]["uid"] == job["metadata"]["uid"]
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"


async def test_a_look_tells_what_it_found() -> None:
    cluster = cluster_with(**UNKNOWN)
    await reconcile(cluster)
    report = f'{{"model": "m", "config": "{pack(TINY_CONFIG)}"}}'
    beside_a_proxy(cluster, only_job(cluster, "inspect"), ended(0, report))
    await reconcile(cluster)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    assert cluster.names(DEPLOYMENT) == ["chat"]


async def test_a_download_that_failed_says_why_and_is_tried_again() -> None:
    cluster = cluster_with(**WEIGHTS)
    await reconcile(cluster)
    first = only_job(cluster, "weights")["metadata"]["uid"]
    beside_a_proxy(cluster, only_job(cluster, "weights"), ended(1, "error: HTTP 403"))
    await reconcile(cluster)
    assert "error: HTTP 403" in condition(cluster, "Degraded")["message"]
    await reconcile(cluster, minutes=11)
    assert only_job(cluster, "weights")["metadata"]["uid"] != first


@pytest.mark.parametrize("code", [0, 1])
async def test_how_a_sidecar_ended_is_not_how_the_work_did(code: int) -> None:
    cluster = cluster_with(**WEIGHTS)
    await reconcile(cluster)
    job = only_job(cluster, "weights")
    beside_a_proxy(cluster, job, RUNS, ended(code, "drained"))
    await reconcile(cluster)
    assert cluster.names(DEPLOYMENT) == []
    assert condition(cluster, "Degraded")["status"] == "False"
    assert "suspend" not in cluster.find(JOB, job["metadata"]["name"])["spec"]


async def test_a_native_sidecar_that_cannot_start_is_told() -> None:
    cluster = cluster_with(**WEIGHTS)
    await reconcile(cluster)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no proxy image"}}
    statuses = [{"name": "proxy", "ready": False, "state": waiting}]
    job_pod(cluster, only_job(cluster, "weights"), phase="Pending", initContainerStatuses=statuses)
    await reconcile(cluster)
    assert "no proxy image" in condition(cluster, "Degraded")["message"]
