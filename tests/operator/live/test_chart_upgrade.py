"""From the previous chart and its operator to this one, under an AtomDeployment that serves.

Both operators are images built from their own sources, installed by helm into the test's namespace.
The engine is a pod that is ready at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from devcluster import target
from devcluster.settings import read_settings
from tests.support.builders_operator import atom_deployment
from tests.support.live_cluster import CRD_NAME, ROOT, LiveCluster
from tests.support.previous_version import extract
from tests.support.quick_pods import engine_image, quick_container, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]

PREVIOUS_IMAGE = "localhost/atom-operator:previous"
THIS_IMAGE = "localhost/atom-operator:dev"
CHART = "charts/atom-operator"
POD = "serving.atom.dev/deployment=chat"
REPLICAS = 2


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the previous version; both versions' images are on the node."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("images of two versions can be built for the embedded cluster only")
    folder = extract(tmp_path_factory.mktemp("previous"))
    dockerfile = folder / "images" / "operator" / "Dockerfile"
    devcluster("build-image", str(folder), f"--file={dockerfile}", f"--tag={PREVIOUS_IMAGE}")
    devcluster("images", "--only=operator")
    return folder


def devcluster(*arguments: str) -> None:
    command = [sys.executable, "-m", "devcluster", *arguments, "--load"]
    subprocess.run(command, cwd=ROOT, timeout=300, check=True)


def helm(cluster: LiveCluster, *arguments: str) -> str:
    built = read_settings(os.environ).tools / "helm"
    program = shutil.which("helm") or str(built)
    done = subprocess.run(
        [program, f"--namespace={cluster.namespace}", *arguments],
        env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def upgrade(cluster: LiveCluster, sources: Path, image: str, *values: str) -> None:
    """The release, named after the namespace, becomes that chart with that operator."""
    tag = image.rpartition(":")[2]
    everything = [f"image.tag={tag}", f"watchNamespaces={{{cluster.namespace}}}", *values]
    flags = [f"--set={value}" for value in everything]
    helm(
        cluster, "upgrade", "--install", cluster.namespace, str(sources / CHART),
        "--take-ownership", "--wait", "--timeout=120s", *flags,
    )  # fmt: skip


@contextmanager
def release(cluster: LiveCluster) -> Iterator[None]:
    """Whatever is installed under the namespace's name is gone afterwards; the CRD stays."""
    try:
        yield
    finally:
        helm(cluster, "uninstall", cluster.namespace, "--ignore-not-found", "--wait")


def apply(cluster: LiveCluster) -> None:
    small = {"cpu": "20m", "memory": "64Mi"}
    container = quick_container(resources={"requests": small, "limits": {"memory": "128Mi"}})
    manifest = atom_deployment(
        engine={"image": engine_image(cluster)},
        template={"spec": {"containers": [container]}},
        rollout={"drainSeconds": 0},
        replicas=REPLICAS,
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def pods(cluster: LiveCluster) -> dict[str, int]:
    """Uid and restarts of every engine pod."""
    columns = "custom-columns=:metadata.uid,:status.containerStatuses[0].restartCount"
    listed = cluster.kubectl(
        "get", "pods", f"--selector={POD}", "--no-headers", f"--output={columns}"
    ).stdout
    return {uid: int(restarts) for uid, restarts in map(str.split, listed.splitlines())}


def available(cluster: LiveCluster) -> int:
    found = cluster.get("deployment", "chat") or {}
    return int((found.get("status") or {}).get("availableReplicas") or 0)


@contextmanager
def watched(look: Callable[[], int]) -> Iterator[list[int]]:
    """What `look` saw, again and again, while the block ran."""
    seen: list[int] = []
    ended = Event()

    def run() -> None:
        while not ended.is_set():
            seen.append(look())
            ended.wait(0.5)

    thread = Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def identity(cluster: LiveCluster, kind: str, name: str) -> Any:
    return (cluster.get(kind, name) or {})["metadata"]["uid"]


def wait_rolled_out(cluster: LiveCluster) -> None:
    """Ready by this operator's words: it alone knows `status.rollout`."""

    def done() -> bool:
        found = (cluster.get("atomd", "chat") or {}).get("status") or {}
        kinds = {item["type"]: item["status"] for item in found.get("conditions", ())}
        known = "CapacityMatched" in kinds and "IntegrationsReady" in kinds
        return known and kinds["Ready"] == "True" and len(pods(cluster)) == REPLICAS

    cluster.wait("Ready under the new operator", done, seconds=90)


def test_an_upgrade_keeps_serving_and_later_ones_touch_no_pod(
    namespaced: LiveCluster, previous: Path
) -> None:
    cluster = namespaced
    with release(cluster):
        upgrade(cluster, previous, PREVIOUS_IMAGE)
        apply(cluster)
        wait_ready(cluster, seconds=90)
        objects = [("crd", CRD_NAME), ("atomd", "chat"), ("deployment", "chat")]
        before = [identity(cluster, *item) for item in objects]

        # This operator renders pods otherwise: they are replaced, and as many serve all the while.
        with watched(lambda: available(cluster)) as seen:
            upgrade(cluster, ROOT, THIS_IMAGE)
            wait_rolled_out(cluster)
        assert min(seen) >= REPLICAS
        assert [identity(cluster, *item) for item in objects] == before
        explained = cluster.kubectl("explain", "atomd.spec.rollout.autoRollback", check=False)
        assert explained.returncode == 0, "the CRD is not this chart's"

        # The next one changes the operator and not what it renders: no pod notices.
        running = pods(cluster)
        upgrade(cluster, ROOT, THIS_IMAGE, "logLevel=DEBUG")
        checked = helm(cluster, "test", cluster.namespace, "--logs")
        for line in ("ok    API", "ok    Lease", "ok    webhook"):
            assert line in checked
        wait_rolled_out(cluster)
        assert pods(cluster) == running

    # Nor does an uninstall take away what is served.
    assert [identity(cluster, *item) for item in objects] == before
    assert pods(cluster) == running
