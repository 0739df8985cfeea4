"""From the previous chart and its operator to this one, under an AtomDeployment that serves.

Both operators are images built from their own sources, installed by helm into the test's namespace.
The engine is a pod that is ready at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from devcluster.settings import read_settings
from tests.support.cluster.client_pod import asking
from tests.support.cluster.live_cluster import CRD_NAME, ROOT, LiveCluster
from tests.support.cluster.previous_version import PREVIOUS_MINOR, extract
from tests.support.cluster.quick_pods import engine_image, quick_container, wait_ready
from tests.support.operator.builders_operator import atom_deployment
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]

PREVIOUS_IMAGE = "localhost/atom-operator:previous"
MINOR_IMAGE = "localhost/atom-operator:previous-minor"
THIS_IMAGE = "localhost/atom-operator:dev"
CHART = "charts/atom-operator"
POD = "serving.atom.dev/deployment=chat"
REPLICAS = 2


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the previous version; both versions' images are on the node."""
    return built(extract(tmp_path_factory.mktemp("previous")), PREVIOUS_IMAGE)


@pytest.fixture(scope="module")
def previous_minor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the minor version before this one, whose image is on the node as well."""
    folder = extract(tmp_path_factory.mktemp("previous-minor"), commit=PREVIOUS_MINOR)
    return built(folder, MINOR_IMAGE)


def built(sources: Path, image: str) -> Path:
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("images of two versions can be built for the embedded cluster only")
    dockerfile = sources / "images" / "operator" / "Dockerfile"
    devcluster("build-image", str(sources), f"--file={dockerfile}", f"--tag={image}")
    devcluster("images", "--only=operator")
    return sources


def devcluster(*arguments: str) -> None:
    command = [sys.executable, "-m", "devcluster", *arguments, "--load"]
    subprocess.run(command, cwd=ROOT, timeout=300, check=True)


def helm(cluster: LiveCluster, *arguments: str) -> str:
    built = read_settings(os.environ).tools / "helm"
    program = shutil.which("helm") or str(built)
    done = subprocess.run(
        [program, f"--namespace={cluster.namespace}", *arguments],
        env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
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
    """Uid and restarts of every engine pod; of one that no node has taken yet none."""
    columns = "custom-columns=:metadata.uid,:status.containerStatuses[0].restartCount"
    listed = cluster.kubectl(
        "get", "pods", f"--selector={POD}", "--no-headers", f"--output={columns}"
    ).stdout
    told = (line.split() for line in listed.splitlines())
    return {uid: 0 if restarts == "<none>" else int(restarts) for uid, restarts in told}


def identity(cluster: LiveCluster, kind: str, name: str) -> Any:
    return (cluster.get(kind, name) or {})["metadata"]["uid"]


def wait_for_this_operators_word(cluster: LiveCluster, replicas: int = REPLICAS) -> str:
    """Return the message of Progressing once the latest spec is Ready; the operator before wrote no
    `status.serving`."""

    def message() -> str | None:
        found = cluster.get("atomd", "chat") or {}
        status = found.get("status") or {}
        told = {item["type"]: item for item in status.get("conditions", ())}
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        if not current or "serving" not in status or told["Ready"]["status"] != "True":
            return None
        return str(told["Progressing"]["message"]) if len(pods(cluster)) == replicas else None

    return cluster.wait("Ready under the new operator", message, seconds=90)


def change(cluster: LiveCluster, spec: dict[str, Any]) -> None:
    patch = json.dumps({"spec": spec})
    cluster.kubectl("patch", "atomd", "chat", "--type=merge", f"--patch={patch}")


OBJECTS = (("crd", CRD_NAME), ("atomd", "chat"), ("deployment", "chat"))


def identities(cluster: LiveCluster) -> list[Any]:
    return [identity(cluster, *item) for item in OBJECTS]


def serve(cluster: LiveCluster, sources: Path, image: str) -> tuple[list[Any], dict[str, int]]:
    """What serves under this operator: the identities of its objects, and its pods."""
    upgrade(cluster, sources, image)
    apply(cluster)
    wait_ready(cluster, seconds=90)
    return identities(cluster), pods(cluster)


@pytest.mark.whole  # generated lives upgrade the operator, and test_crd_upgrade the chart's CRD
def test_an_upgrade_restarts_no_pod_and_fails_no_request(
    namespaced: LiveCluster, previous: Path
) -> None:
    """Most of a minute: three operators start one after the other, and pods are replaced."""
    cluster = namespaced
    with release(cluster):
        before, running = serve(cluster, previous, PREVIOUS_IMAGE)
        template = (cluster.get("deployment", "chat") or {})["spec"]["template"]

        with asking(cluster, engine_image(cluster), "chat") as asked:
            # This operator renders pods otherwise; those that serve stay as they are.
            upgrade(cluster, ROOT, THIS_IMAGE)
            told = wait_for_this_operators_word(cluster)
            assert "another version of the operator" in told
            assert pods(cluster) == running
            assert (cluster.get("deployment", "chat") or {})["spec"]["template"] == template
            assert identities(cluster) == before
            explained = cluster.kubectl("explain", "atomd.spec.rollout.autoRollback", check=False)
            assert explained.returncode == 0, "the CRD is not this chart's"

            # Nor does the next one, with other settings; and scaling makes more of the same.
            upgrade(cluster, ROOT, THIS_IMAGE, "logLevel=DEBUG")
            checked = helm(cluster, "test", cluster.namespace, "--logs")
            for line in ("ok    API", "ok    Lease", "ok    webhook"):
                assert line in checked
            change(cluster, {"replicas": REPLICAS + 1})
            wait_for_this_operators_word(cluster, REPLICAS + 1)
            assert running.items() <= pods(cluster).items()

            # Another spec is what renders pods anew.
            change(cluster, {"replicas": REPLICAS, "engine": {"maxModelLen": 1024}})
            told = wait_for_this_operators_word(cluster)
            assert "another version" not in told
            assert not running.keys() & pods(cluster).keys()
        assert asked.failures == []
        assert asked.answered > 50
        running = pods(cluster)

    # Nor does an uninstall take away what is served.
    assert identities(cluster) == before
    assert pods(cluster) == running


@pytest.mark.slow
def test_a_downgrade_to_the_minor_version_before_restarts_no_pod_either(
    namespaced: LiveCluster, previous_minor: Path
) -> None:
    """Up, down and up again between adjacent versions, under requests."""
    cluster = namespaced
    with release(cluster):
        before, running = serve(cluster, previous_minor, MINOR_IMAGE)
        with asking(cluster, engine_image(cluster), "chat") as asked:
            for sources, image in (
                (ROOT, THIS_IMAGE), (previous_minor, MINOR_IMAGE), (ROOT, THIS_IMAGE),
            ):  # fmt: skip
                upgrade(cluster, sources, image)
                wait_at_work(cluster)
                assert pods(cluster) == running
                assert identities(cluster) == before
        assert asked.failures == []
        assert asked.answered > 50
        # Scaling by the version that has it now makes more of the same.
        change(cluster, {"replicas": REPLICAS + 1})
        cluster.wait("a third pod", lambda: len(pods(cluster)) == REPLICAS + 1, seconds=90)
        assert running.items() <= pods(cluster).items()


def wait_at_work(cluster: LiveCluster) -> None:
    """Until the operator that was just installed has taken up a spec of the same pods."""
    generation = (cluster.get("atomd", "chat") or {})["metadata"]["generation"]
    change(cluster, {"rollout": {"autoRollback": bool(generation % 2)}})

    def told() -> bool:
        found = cluster.get("atomd", "chat") or {}
        status = found.get("status") or {}
        ready = [item["status"] for item in status.get("conditions", ()) if item["type"] == "Ready"]
        return bool(status.get("observedGeneration", 0) > generation and ready == ["True"])

    cluster.wait("Ready under the new operator", told, seconds=90)
