"""Models of buckets and of images of their own reach engines and Jobs, secrets by reference."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import DEPLOYMENT, JOB, VOLUME_CLAIM
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.jobs import only_job, succeed

S3 = {"endpoint": "https://minio.acme", "region": "eu", "secretRef": {"name": "bucket"}}
BUCKET: dict[str, Any] = {"source": "s3://models/acme/tiny", "s3": S3, "config": TINY_CONFIG}
IMAGE: dict[str, Any] = {"source": "oci://registry.acme/models/tiny:v1", "config": TINY_CONFIG}
ROOM = {"type": "cpu", "memory": "16Gi"}
CLAIMED = {"weights": {"claim": "models"}}


async def pod_of_engine(cluster: FakeCluster) -> dict[str, Any]:
    await reconciler(cluster).reconcile(KEY)
    return dict(cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"])


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {
        item["name"]: item.get("value") or item["valueFrom"]["secretKeyRef"]
        for item in container["env"]
        if item["name"].startswith("AWS_")
    }


REACHED = {
    "AWS_ENDPOINT_URL": "https://minio.acme",
    "AWS_REGION": "eu",
    "AWS_ACCESS_KEY_ID": {"name": "bucket", "key": "AWS_ACCESS_KEY_ID"},
    "AWS_SECRET_ACCESS_KEY": {"name": "bucket", "key": "AWS_SECRET_ACCESS_KEY"},
    "AWS_SESSION_TOKEN": {"name": "bucket", "key": "AWS_SESSION_TOKEN", "optional": True},
}


async def test_pods_download_from_a_bucket_for_themselves() -> None:
    pod = await pod_of_engine(cluster_with(model=BUCKET, accelerator=ROOM))
    (engine,) = pod["containers"]
    assert engine["args"][:4] == [
        *("--model", "s3://models/acme/tiny", "--served-model-name", "tiny"),
    ]
    assert variables(engine) == REACHED


async def test_a_job_fetches_a_bucket_and_engines_get_no_credentials() -> None:
    cluster = cluster_with(model=BUCKET, accelerator=ROOM, cache=CLAIMED)
    await reconciler(cluster).reconcile(KEY)
    job = only_job(cluster, "atom-weights")
    (step,) = job["spec"]["template"]["spec"]["containers"]
    folder = "/models/models/s3--models--acme--tiny/main"
    words = ["--model", "s3://models/acme/tiny", "--folder", folder]
    assert step["command"][3:7] == words
    assert variables(step) == REACHED
    succeed(cluster, job, {"commit": "c0ffee"})
    (engine,) = (await pod_of_engine(cluster))["containers"]
    assert engine["args"][:2] == ["--model", folder]
    assert variables(engine) == {}


async def test_an_image_is_a_volume_where_the_api_server_takes_one() -> None:
    cluster = cluster_with(model=IMAGE, accelerator=ROOM)
    pod = await pod_of_engine(cluster)
    (volume,) = [item for item in pod["volumes"] if item["name"] == "models"]
    assert volume["image"] == {"reference": "registry.acme/models/tiny:v1"}
    assert "initContainers" not in pod
    (engine,) = pod["containers"]
    assert engine["args"][:4] == [
        *("--model", "/model-image/models", "--served-model-name", "tiny"),
    ]
    await reconciler(cluster).reconcile(KEY)


@pytest.mark.parametrize("asked", [{}, {"image": {"volume": False, "folder": "/weights"}}])
async def test_elsewhere_it_is_a_sidecar_that_starts_before_the_engine(
    asked: dict[str, Any],
) -> None:
    cluster = cluster_with(model={**IMAGE, **asked}, accelerator=ROOM)
    cluster.image_volumes = bool(asked)
    pod = await pod_of_engine(cluster)
    (sidecar,) = pod["initContainers"]
    assert (sidecar["image"], sidecar["restartPolicy"]) == (
        "registry.acme/models/tiny:v1",
        "Always",
    )
    folder = "/weights" if asked else "/models"
    assert f"/proc/$$/root{folder} /model-image{folder}" in sidecar["command"][-1]
    assert pod["shareProcessNamespace"] is True
    (volume,) = [item for item in pod["volumes"] if item["name"] == "models"]
    assert volume["emptyDir"] == {}
    assert pod["containers"][0]["args"][1] == f"/model-image{folder}"


@pytest.mark.parametrize("volume", [True, False])
async def test_a_look_at_a_model_mounts_its_image(volume: bool) -> None:
    model = {"source": IMAGE["source"], "image": {"volume": volume}}
    cluster = cluster_with(model=model, accelerator=ROOM)
    await reconciler(cluster).reconcile(KEY)
    pod = only_job(cluster, "inspect")["spec"]["template"]["spec"]
    (step,) = pod["containers"]
    assert step["command"][-1] == "/model-image/models"
    assert [item["mountPath"] for item in step["volumeMounts"]].count("/model-image") == 1
    assert len(pod.get("initContainers", ())) == (0 if volume else 1)
    assert [item["name"] for item in pod["volumes"]].count("models") == 1


@pytest.mark.parametrize(("room", "begins"), [("64Ki", False), ("10Gi", True)])
async def test_a_claim_that_cannot_hold_the_weights_is_told_before_any_job(
    room: str, begins: bool
) -> None:
    cluster = cluster_with(model=BUCKET, accelerator=ROOM, cache=CLAIMED)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": room}},
        },
    }
    cluster.create(VOLUME_CLAIM, claim)
    await reconciler(cluster).reconcile(KEY)
    assert bool(cluster.names(JOB)) is begins
    loaded = condition(cluster, "ModelLoaded")
    assert loaded["reason"] == ("DownloadingWeights" if begins else "ClaimTooSmall")
    if not begins:
        assert "has 64 KiB, and the weights alone are" in loaded["message"]
        assert condition(cluster, "Degraded")["reason"] == "ClaimTooSmall"
