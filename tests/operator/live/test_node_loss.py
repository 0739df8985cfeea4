"""A node that stops to answer, on real controllers: what is left serves, and what is back is used.

Nodes and pods are simulated by kwok; the loss, the eviction and the return are Kubernetes' own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.fleet.simulated_nodes import GPUS_PER_NODE, LABEL, TOLERATION, simulated_nodes
from devcluster import target
from devcluster.health import api_of
from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, status
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("only_operator"),
]

_RESOURCE = "amd.com/gpu"
_LOST = "simulated-1"
# A node is lost when it has been silent for 50 s; its pods are sent away at once.
_LOSS_SECONDS = 150.0
_SOON = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute"}
    | {"tolerationSeconds": 1}
    for why in ("not-ready", "unreachable")
]


@pytest.fixture
def two_nodes(live_cluster: LiveCluster, tmp_path: Path) -> Iterator[None]:
    """Each with as many GPUs as one replica takes."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("nodes are simulated on the embedded cluster only")
    settings = read_settings(os.environ)
    config = yaml.safe_load(Path(live_cluster.kubeconfig).read_text())
    api = api_of(settings, config["clusters"][0]["cluster"]["server"])
    with simulated_nodes(settings, api, 2, tmp_path / "kwok.log"):
        yield


def apply(cluster: LiveCluster) -> None:
    gpus = {_RESOURCE: str(GPUS_PER_NODE)}
    container = {"name": "engine", "resources": {"requests": gpus, "limits": gpus}}
    spec = {
        "containers": [container],
        "tolerations": [TOLERATION, *_SOON],
        "nodeSelector": {"devcluster.atom.dev/simulated-gpus": "true"},
    }
    manifest = atom_deployment(
        engine={"image": "localhost/atom-none:0"},
        accelerator={"type": "amd", "product": "MI300X"},
        template={"spec": spec},
        rollout={"drainSeconds": 0},
        replicas=2,
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def told(cluster: LiveCluster, kind: str, **wanted: str) -> dict[str, Any] | None:
    found = condition(cluster, kind)
    return found if all(found.get(name) == value for name, value in wanted.items()) else None


def revision(cluster: LiveCluster) -> str:
    return str(status(cluster)["revision"])


@pytest.mark.usefixtures("two_nodes")
def test_a_lost_node_costs_its_replica_and_its_return_brings_it_back(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    for node in ("simulated-0", _LOST):
        cluster.kubectl("label", "node", node, "devcluster.atom.dev/simulated-gpus=true")
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster)
        cluster.wait("Ready", lambda: told(cluster, "Ready", status="True"), seconds=60)
        before = revision(cluster)

        cluster.kubectl("label", "node", _LOST, f"{LABEL}-")  # nobody renews its lease any more
        silent = cluster.wait(
            "word of the node that has fallen silent",
            lambda: told(cluster, "Degraded", reason="NodeSilent"),
            seconds=_LOSS_SECONDS,
        )
        assert f"node {_LOST} has not reported since " in silent["message"]
        assert f"node {_LOST} has not reported" in condition(cluster, "Available")["message"]
        scheduled = cluster.wait(
            "word of the replica without a place",
            lambda: told(cluster, "Scheduled", reason="InsufficientAccelerators"),
            seconds=_LOSS_SECONDS,
        )
        assert f"{_LOST}: not ready" in scheduled["message"]
        assert told(cluster, "Available", status="True")
        assert told(cluster, "Ready", status="False")
        assert status(cluster)["readyReplicas"] == 1
        assert revision(cluster) == before

        cluster.kubectl("label", "node", _LOST, f"{LABEL}=true")
        cluster.wait("Ready again", lambda: told(cluster, "Ready", status="True"), seconds=90)
        assert revision(cluster) == before
        assert told(cluster, "Degraded", status="False")
