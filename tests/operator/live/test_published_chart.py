"""What `make release` publishes, installed on a cluster from the registry that it was pushed to.

The registry is crane's, in the network of the node: helm pulls the chart from it, and containerd
the operator's image by its digest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from devcluster import target
from devcluster.images.build_image import build_image
from devcluster.images.project_images import REQUESTS
from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.quick_pods import engine_image, quick_container, wait_ready
from tests.support.operator.builders_operator import atom_deployment
from tests.support.release.dry_run import crane_program, local_registry, release_of_checkout
from tests.support.release.keys import key_files
from tools.kube import attempt
from tools.release import signing
from tools.release.registry import Registry

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

_IN_THE_NODES_NETWORK = (sys.executable, "-m", "devcluster", "exec", "--")


@dataclass(frozen=True)
class Published:
    """A released chart in a registry. image: the operator's, by digest, as the node pulls it."""

    chart: str
    version: str
    image: str


@pytest.fixture
def published(live_cluster: LiveCluster, tmp_path: Path) -> Iterator[Published]:
    """The node calls its own registry localhost, from which containerd pulls without TLS; helm is
    outside and needs the address."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("a registry runs in the network of the embedded cluster's node only")
    archive = build_image(read_settings(os.environ), REQUESTS["operator"])
    config = yaml.safe_load(Path(live_cluster.kubeconfig).read_text())
    node = urlsplit(config["clusters"][0]["cluster"]["server"]).hostname
    keys = key_files(tmp_path, "own")
    with local_registry(tmp_path / "registry", "0.0.0.0", _IN_THE_NODES_NETWORK) as port:
        registry = Registry(crane_program(), f"{node}:{port}/atom")
        pushed = registry.push(archive, f"{registry.name}/atom-operator:released")
        image = f"localhost:{port}/atom/atom-operator@{pushed.partition('@')[2]}"
        made = release_of_checkout(tmp_path, image, keys)
        registry.push_chart(made, signing.read_private_key(keys[0], None))
        yield Published(f"oci://{registry.name}/charts/atom-operator", made.name, image)


def helm(cluster: LiveCluster, *arguments: str) -> str:
    done = attempt(
        ("helm", f"--namespace={cluster.namespace}", *arguments),
        kubeconfig=cluster.kubeconfig, tools=cluster.tools, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def installed(published: Published, namespaced: LiveCluster) -> Iterator[LiveCluster]:
    """For the test's namespace alone, with the defaults of the release otherwise."""
    cluster = namespaced
    try:
        helm(
            cluster, "install", cluster.namespace, published.chart,
            f"--version={published.version}", "--plain-http", "--take-ownership", "--wait",
            "--timeout=200s", f"--set=watchNamespaces={{{cluster.namespace}}}",
        )  # fmt: skip
        yield cluster
    finally:
        helm(cluster, "uninstall", cluster.namespace, "--ignore-not-found", "--wait")


def test_the_published_chart_runs_the_released_operator(
    published: Published, installed: LiveCluster
) -> None:
    (release,) = json.loads(helm(installed, "list", "--output=json"))
    assert release["chart"] == f"atom-operator-{published.version}"
    selector = "--selector=app.kubernetes.io/name=atom-operator"
    pods = json.loads(installed.kubectl("get", "pods", selector, "-o", "json").stdout)["items"]
    statuses = [status for pod in pods for status in pod["status"]["containerStatuses"]]
    assert [status["ready"] for status in statuses] == [True, True]
    assert {status["imageID"] for status in statuses} == {published.image}

    small = {"cpu": "20m", "memory": "64Mi"}
    container = quick_container(resources={"requests": small, "limits": {"memory": "128Mi"}})
    manifest = atom_deployment(
        engine={"image": engine_image(installed)},
        template={"spec": {"containers": [container]}},
        rollout={"drainSeconds": 0},
    )
    manifest["metadata"]["namespace"] = installed.namespace
    installed.kubectl("apply", "--filename=-", manifest=manifest)
    wait_ready(installed)
