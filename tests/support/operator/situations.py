"""AtomDeployments in every situation that people's tools tell apart, written by the reconciler.

Each is made on the in-memory cluster by the operator's own code, so a condition that is renamed or
decided otherwise shows in whatever reads them: health checks of Argo CD and Flux.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, SERVICE, Manifest
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    cluster_with,
    pod,
    reconciler,
    unschedulable_pod,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.jobs import fail, only_job

_REVISION = "serving.atom.dev/revision"
_HUB_MODEL = {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"}
_DOWNLOAD: dict[str, Any] = {
    "model": _HUB_MODEL,
    "cache": {"weights": {"claim": "models"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
}
_CRASHING = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "no such model"}},
}


async def _reconciled(**changes: Any) -> FakeCluster:
    cluster = cluster_with(**changes)
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _serving(**changes: Any) -> FakeCluster:
    cluster = await _reconciled(**changes)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _new() -> FakeCluster:
    return cluster_with()


async def _changed_since() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=2)
    return cluster


async def _rolling_out() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 1024})
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _waiting_for_a_node() -> FakeCluster:
    cluster = await _reconciled()
    cluster.put_pod(unschedulable_pod(cluster, "0/3 nodes are available: 3 Insufficient memory."))
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _downloading() -> FakeCluster:
    cluster = cluster_with(**_DOWNLOAD)
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _download_failed() -> FakeCluster:
    cluster = await _downloading()
    fail(cluster, only_job(cluster, "weights"), "401 from the hub", NOW)
    await reconciler(cluster, NOW + timedelta(seconds=1)).reconcile(KEY)
    return cluster


def _crash(cluster: FakeCluster, *, name: str) -> None:
    container = {"name": "engine", "ready": False, "restartCount": 2, **_CRASHING}
    manifest = pod(cluster, name, ready=False, containerStatuses=[container])
    cluster.put_pod(manifest)


async def _first_pod_fails() -> FakeCluster:
    cluster = await _reconciled()
    _crash(cluster, name="chat-1")
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _replica_lost() -> FakeCluster:
    cluster = await _serving(replicas=2)
    finish_rollout(cluster, ready=1)
    cluster.put_pod(pod(cluster, "chat-2", ready=False))
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _replica_crashes() -> FakeCluster:
    cluster = await _serving(replicas=2)
    finish_rollout(cluster, ready=1)
    _crash(cluster, name="chat-2")
    await reconciler(cluster).reconcile(KEY)
    return cluster


def _pass_the_deadline(cluster: FakeCluster) -> None:
    finish_rollout(cluster, ready=0)
    message = 'ReplicaSet "chat-1" has timed out progressing.'
    cluster.find(DEPLOYMENT, "chat")["status"]["conditions"] = [
        {
            "type": "Progressing",
            "status": "False",
            "reason": "ProgressDeadlineExceeded",
            "message": message,
        }
    ]


async def _deadline_passed() -> FakeCluster:
    cluster = await _reconciled()
    _pass_the_deadline(cluster)
    stored = cluster.find(DEPLOYMENT, "chat")["status"]
    stored["updatedReplicas"] = 0  # the rollout never got anywhere
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _rolled_back() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", engine={"image": "registry.test/atom:broken"})
    await reconciler(cluster).reconcile(KEY)
    _crash(cluster, name="chat-2")
    _pass_the_deadline(cluster)
    cluster.find(DEPLOYMENT, "chat")["status"]["updatedReplicas"] = 0
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _child_refused() -> FakeCluster:
    cluster = cluster_with()
    cluster.refused_kinds[SERVICE] = "exceeded quota: services"
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _invalid() -> FakeCluster:
    return await _reconciled(engine={"maxModelLen": 4096})  # the model's own is 2048


async def _too_large() -> FakeCluster:
    model = {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"}
    return await _reconciled(model=model, accelerator={"type": "amd", "product": "MI210"})


async def _too_large_a_change() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", accelerator={"type": "cpu", "memory": "512Mi"})
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _scaled_to_zero() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", replicas=0)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    return cluster


async def _suspended() -> FakeCluster:
    cluster = await _serving()
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", suspend=True)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    return cluster


SITUATIONS: dict[str, Callable[[], Awaitable[FakeCluster]]] = {
    "new": _new,
    "changed since the last look": _changed_since,
    "serving": _serving,
    "rolling out": _rolling_out,
    "waiting for a node": _waiting_for_a_node,
    "downloading": _downloading,
    "download failed": _download_failed,
    "first pod fails": _first_pod_fails,
    "replica lost": _replica_lost,
    "replica crashes": _replica_crashes,
    "deadline passed": _deadline_passed,
    "rolled back": _rolled_back,
    "child refused": _child_refused,
    "invalid": _invalid,
    "too large": _too_large,
    "too large a change": _too_large_a_change,
    "scaled to zero": _scaled_to_zero,
    "suspended": _suspended,
}


async def situation(name: str) -> Manifest:
    """The AtomDeployment `chat` in that situation, as the API server would return it."""
    cluster = await SITUATIONS[name]()
    return dict(cluster.find(ATOM_DEPLOYMENT, "chat"))
