"""A download is told what of its claim is used, and may remove the rest of what downloads put
there; what it removed is an Event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, JOB, VOLUME_CLAIM, Manifest
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    atom_deployment,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.jobs import fail, job_pod

ROOM = {"type": "cpu", "memory": "16Gi"}
SMALL = "hf://Qwen/Qwen3-0.6B"


def model(revision: str, source: str = SMALL) -> dict[str, str]:
    return {"source": source, "revision": revision}


def asked(revision: str, prune: str | None = "WhenFull", **more: Any) -> dict[str, Any]:
    weights = {"claim": "models", **({"prune": prune} if prune else {})}
    return {
        "model": model(revision),
        "cache": {"weights": weights},
        "accelerator": ROOM,
        **more,
    }


def with_claim(**spec: Any) -> FakeCluster:
    cluster = cluster_with(**spec)
    bound = {"accessModes": ["ReadWriteMany"]}
    claim = {"metadata": {"name": "models", "namespace": "default"}, "spec": bound}
    cluster.create(VOLUME_CLAIM, claim)
    cluster.find(VOLUME_CLAIM, "models")["metadata"]["uid"] = "uid-of-claim"
    return cluster


async def look(cluster: FakeCluster, **more: Any) -> None:
    await reconciler(cluster, **more).reconcile(KEY)


def jobs(cluster: FakeCluster) -> list[Manifest]:
    return [cluster.find(JOB, name) for name in cluster.names(JOB)]


def flags(job: Manifest) -> list[str]:
    (step,) = job["spec"]["template"]["spec"]["containers"]
    return list(step["command"])


def kept(job: Manifest) -> list[str]:
    given = flags(job)
    return [given[at + 1] for at, flag in enumerate(given) if flag == "--keep"]


def claim_uid(job: Manifest) -> str | None:
    (step,) = job["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value") for item in step["env"]}.get("ATOM_CLAIM_UID")


def end(cluster: FakeCluster, job: Manifest, result: dict[str, Any]) -> None:
    """It succeeds, and its pod is still there."""
    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(result)}
    status = {"name": "prepare", "ready": False, "state": {"terminated": ended}}
    job_pod(cluster, job, containerStatuses=[status])
    stamp = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"type": "Complete", "status": "True", "lastTransitionTime": stamp}
    job["status"] = {"conditions": [done]}


async def test_without_a_word_nothing_is_removed_and_the_folder_is_marked() -> None:
    cluster = with_claim(**asked("v1", prune=None))
    await look(cluster)
    (job,) = jobs(cluster)
    assert "--prune" not in flags(job)
    assert claim_uid(job) == "uid-of-claim"


async def test_the_job_is_told_what_is_used_at_its_making() -> None:
    cluster = with_claim(**asked("v1", prune="Always"))
    others = {
        "suspended": {**asked("v2", prune=None), "suspend": True, "model": model("v2")},
        "by-path": {"model": {"source": "pvc://models/by-hand/llama"}, "accelerator": ROOM},
        "adapters": {
            "model": {"source": SMALL},
            "engine": {"lora": {"claims": ["models"]}},
            "adapters": [{"name": "sql", "source": "pvc://models/adapters/sql"}],
            "accelerator": ROOM,
        },
        "elsewhere": {**asked("v3", prune=None), "cache": {"weights": {"claim": "other"}}},
    }
    for name, spec in others.items():
        cluster.create(ATOM_DEPLOYMENT, {**atom_deployment(name), "spec": spec})
    await look(cluster)
    (job,) = jobs(cluster)
    given = flags(job)
    assert given[given.index("--prune") + 1] == "Always"
    assert given[given.index("--claim-root") + 1] == "/models/models"
    assert given[given.index("--as-of") + 1] == str(int(NOW.timestamp()))
    assert kept(job) == [
        "Qwen--Qwen3-0.6B/v1",
        "Qwen--Qwen3-0.6B/v2",
        "adapters/sql",
        "by-hand/llama",
    ]


async def test_what_still_runs_is_kept_while_the_next_revision_is_fetched() -> None:
    cluster = with_claim(**asked("v1"))
    await look(cluster)
    end(cluster, jobs(cluster)[0], {"model": "m"})
    await look(cluster)
    finish_rollout(cluster)
    await look(cluster)
    assert cluster.names(DEPLOYMENT) == ["chat"]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", model=model("v2"))
    await look(cluster)
    (second,) = [job for job in jobs(cluster) if "v2" in flags(job)]
    assert kept(second) == ["Qwen--Qwen3-0.6B/v1", "Qwen--Qwen3-0.6B/v2"]


async def test_a_canarys_folder_is_kept_before_it_has_any_pod() -> None:
    route = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
    canary = {"change": {"model": {"source": SMALL, "revision": "v9"}}, "weight": 10}
    cluster = with_claim(**asked("v1", gateway=route, canary=canary))
    await look(cluster)
    assert "Qwen--Qwen3-0.6B/v9" in kept(jobs(cluster)[0])


async def test_another_user_of_the_claim_makes_no_other_job_of_one_that_runs() -> None:
    cluster = with_claim(**asked("v1"))
    await look(cluster)
    (before,) = jobs(cluster)
    uid = before["metadata"]["uid"]
    spec = {"model": {"source": "pvc://models/by-hand/llama"}, "accelerator": ROOM}
    cluster.create(ATOM_DEPLOYMENT, {**atom_deployment("by-path"), "spec": spec})
    await look(cluster)
    (after,) = jobs(cluster)
    assert (after["metadata"]["uid"], kept(after)) == (uid, kept(before))


@pytest.mark.parametrize("spoils", ["pod", "spec"])
async def test_what_is_not_known_to_be_unused_stays_and_that_is_said(spoils: str) -> None:
    cluster = with_claim(**asked("v1"))
    if spoils == "pod":
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "models"}}
        metadata = {"name": "notebook", "namespace": "default"}
        cluster.put_pod({"metadata": metadata, "spec": {"volumes": [volume]}, "status": {}})
        words = "pod notebook mounts claim models too, and is not the operator's"
    else:
        newer = {"model": {"source": SMALL, "field": "of a later version"}}
        cluster.create(ATOM_DEPLOYMENT, {**atom_deployment("later"), "spec": newer})
        words = "a spec of the namespace cannot be read by this operator"
    await look(cluster)
    (job,) = jobs(cluster)
    assert "--prune" not in flags(job)
    assert claim_uid(job) == "uid-of-claim"
    fail(cluster, job, "8 bytes more are needed and 0 are free", NOW)
    await look(cluster)
    message = condition(cluster, "ModelLoaded")["message"]
    assert f"Nothing was removed from the claim: {words}" in message


async def test_what_was_removed_is_told_once() -> None:
    cluster = with_claim(**asked("v1", prune="Always"))
    await look(cluster)
    (job,) = jobs(cluster)
    removed = {"removed": ["a--b/main"], "removedFolders": 3, "removedBytes": 3 << 30}
    end(cluster, job, {"model": "m", **removed})
    for _ in range(3):
        await look(cluster)
    told = [cluster.find(EVENT, name) for name in cluster.names(EVENT)]
    (event,) = [item for item in told if item["reason"] == "UnusedWeightsRemoved"]
    assert (event["type"], event["count"]) == ("Normal", 1)
    assert event["message"] == (
        f"Job {job['metadata']['name']} removed 3 GiB from the claim that nothing of the "
        "namespace uses: a--b/main and 2 more"
    )


async def test_a_download_that_removed_nothing_tells_nothing() -> None:
    cluster = with_claim(**asked("v1", prune="Always"))
    await look(cluster)
    end(cluster, jobs(cluster)[0], {"model": "m"})
    await look(cluster)
    reasons = {cluster.find(EVENT, name)["reason"] for name in cluster.names(EVENT)}
    assert "UnusedWeightsRemoved" not in reasons
