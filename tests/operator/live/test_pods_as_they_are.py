"""Evicted pods, a full quota, Jobs that hang or are refused: on a real API server and kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import (
    condition,
    engine_image,
    quick_container,
    status,
    wait_ready,
)
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

CPU = {"type": "cpu", "memory": "1Gi"}
DONE = {"name": "prepare", "command": ["python3", "-c", "pass"]}


@pytest.fixture(scope="module")
def image(live_cluster: LiveCluster) -> str:
    return engine_image(live_cluster)


@pytest.fixture
def cluster(namespaced: LiveCluster, tmp_path: Path) -> Iterator[LiveCluster]:
    """A namespace with an operator of its own."""
    with operator(namespaced, tmp_path / "operator.log"):
        yield namespaced


def apply(cluster: LiveCluster, image: str, **changes: Any) -> None:
    template: dict[str, Any] = {"spec": {"containers": [quick_container()]}}
    spec: dict[str, Any] = {
        "template": template,
        "rollout": {"drainSeconds": 0},
        "accelerator": CPU,
        **changes,
        "engine": {"image": image, **changes.get("engine", {})},
    }
    manifest = atom_deployment(**spec)
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def told(cluster: LiveCluster, kind: str, reason: str) -> dict[str, Any]:
    """The condition once it has that reason."""

    def look() -> dict[str, Any] | None:
        found = condition(cluster, kind)
        return found if found.get("reason") == reason else None

    return cluster.wait(f"{kind}, {reason}", look)


def create(cluster: LiveCluster, manifest: dict[str, Any]) -> None:
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def quota(cluster: LiveCluster, **hard: str) -> None:
    spec = {"hard": {name.replace("_", "."): value for name, value in hard.items()}}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": spec}
    create(cluster, made)


def pods(cluster: LiveCluster, phase: str) -> list[str]:
    listed = cluster.kubectl(
        "get",
        "pods",
        "--selector=serving.atom.dev/deployment=chat",
        f"--field-selector=status.phase={phase}",
        "--output=name",
    )
    return listed.stdout.split()


@pytest.mark.slow
def test_an_evicted_pod_is_told_until_its_successor_serves(
    cluster: LiveCluster, image: str
) -> None:
    small = [{"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}}]
    slow = quick_container()
    slow["command"][2] = f"import time; time.sleep(20)\n{slow['command'][2]}"
    template = {"spec": {"containers": [slow], "volumes": small}}
    apply(cluster, image, template=template)
    wait_ready(cluster, seconds=180)
    (pod,) = pods(cluster, "Running")
    fill = "open('/tmp/much', 'wb').write(bytes(8 << 20))"
    cluster.kubectl("exec", pod, "--container=engine", "--", "python3", "-c", fill)
    words = 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi"'
    cluster.wait("the kubelet's words", lambda: words in condition(cluster, "Degraded")["message"])
    told(cluster, "Degraded", "PodEnded")
    wait_ready(cluster, seconds=180)
    phase = cluster.kubectl("get", pod, "--output=jsonpath={.status.phase}").stdout
    assert phase in ("Failed", "Succeeded"), "it stays, and counts in nothing"
    told(cluster, "Degraded", "AsExpected")
    told(cluster, "ModelLoaded", "Loaded")


def test_a_rollout_goes_on_in_a_quota_that_its_own_pod_fills(
    cluster: LiveCluster, image: str
) -> None:
    quota(cluster, pods="1")
    apply(cluster, image)
    wait_ready(cluster, seconds=180)
    first = status(cluster)["revision"]
    apply(cluster, image, engine={"maxModelLen": 1024})
    now = wait_ready(cluster, seconds=180)
    assert now["revision"] != first
    assert now["rollout"]["strategy"] == "InPlace"
    assert "quota team has no room for 1 pods (1 of 1 used)" in now["rollout"]["reason"]


def test_an_engine_has_limits_where_a_quota_counts_them(cluster: LiveCluster, image: str) -> None:
    quota(cluster, limits_memory="512Gi", limits_cpu="64")
    apply(cluster, image)
    wait_ready(cluster, seconds=180)
    used = (cluster.get("resourcequota", "team") or {})["status"]["used"]
    assert used["limits.cpu"] != "0"
    assert used["limits.memory"] != "0"


def weights(**changes: Any) -> dict[str, Any]:
    model = {"source": "hf://acme/tiny", "config": atom_deployment()["spec"]["model"]["config"]}
    return {"model": model, "cache": {"weights": {"claim": "weights"}}, **changes}


def claim(cluster: LiveCluster) -> None:
    volume = f"weights-{cluster.namespace}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    folder = {"path": f"/tmp/{volume}", "type": "DirectoryOrCreate"}
    create(
        cluster,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {**common, "capacity": {"storage": "1Mi"}, "hostPath": folder},
        },
    )
    create(
        cluster,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "weights"},
            "spec": {
                **common,
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Mi"}},
            },
        },
    )


@pytest.mark.slow
def test_a_download_that_hangs_or_is_refused_is_told_and_put_right(
    cluster: LiveCluster, image: str
) -> None:
    claim(cluster)
    done = {"template": {"spec": {"containers": [DONE]}}}
    try:
        apply(cluster, "localhost/atom-engine:typo", **weights(jobs=done))
        hanging = told(cluster, "Degraded", "PodFailing")
        assert "Job atom-weights" in hanging["message"]
        assert "ErrImage" in hanging["message"] or "ImagePull" in hanging["message"]

        quota(cluster, limits_memory="2Gi", limits_cpu="100")
        apply(cluster, image, **weights(jobs=done))
        refused = told(cluster, "Degraded", "PodsRefused")
        assert "exceeded quota: team" in refused["message"]
        events = cluster.kubectl("get", "events", "--output=jsonpath={.items[*].message}").stdout
        assert "Degraded=True: Job atom-weights" in events

        limits = {"limits": {"cpu": "1", "memory": "256Mi"}}
        fits = {"template": {"spec": {"containers": [{**DONE, "resources": limits}]}}}
        engine = quick_container(resources={"limits": {"cpu": "1"}})
        template = {"spec": {"containers": [engine]}}
        apply(cluster, image, **weights(jobs=fits, template=template))
        wait_ready(cluster, seconds=180)
    finally:
        cluster.kubectl("delete", "pv", f"weights-{cluster.namespace}", "--wait=false")
