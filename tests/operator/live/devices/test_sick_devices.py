"""A GPU that falls sick under a pod, on real controllers: the pod stays while a quota refuses its
successor, and is then evicted to the free node.

Nodes and pods are simulated by kwok; the numbers of the node are what a kubelet writes whose device
plugin calls one device unhealthy. Seven minutes, most of them waited.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.fleet.simulated_nodes import GPUS_PER_NODE, TOLERATION, simulated_nodes
from devcluster import target
from devcluster.health import api_of
from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("only_operator"),
]

_RESOURCE = "amd.com/gpu"
_OFTEN = {"ATOM_OPERATOR_RESYNC_SECONDS": "60"}


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
    manifest = atom_deployment(
        engine={"image": "localhost/atom-none:0"},
        accelerator={"type": "amd", "product": "MI300X"},
        template={"spec": {"containers": [container], "tolerations": [TOLERATION]}},
        rollout={"drainSeconds": 0},
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def told(cluster: LiveCluster, kind: str, **wanted: str) -> dict[str, Any] | None:
    found = condition(cluster, kind)
    return found if all(found.get(name) == value for name, value in wanted.items()) else None


def place(cluster: LiveCluster) -> dict[str, str]:
    """The node of each pod that does not end."""
    listed = json.loads(cluster.kubectl("get", "pods", "-o", "json").stdout)["items"]
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in listed
        if not pod["metadata"].get("deletionTimestamp")
    }


@pytest.mark.usefixtures("two_nodes")
def test_a_pod_leaves_the_node_whose_device_is_sick(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log", _OFTEN):
        apply(cluster)
        cluster.wait("Ready", lambda: told(cluster, "Ready", status="True"), seconds=60)
        ((pod, node),) = place(cluster).items()
        fewer = {"status": {"allocatable": {_RESOURCE: str(GPUS_PER_NODE - 1)}}}
        arguments = ("patch", "node", node, "--subresource=status", "--type=merge")
        cluster.kubectl(*arguments, f"--patch={json.dumps(fewer)}")
        sick = cluster.wait(
            "word of the sick device",
            lambda: told(cluster, "DevicesHealthy", reason="DeviceUnhealthy"),
            seconds=150,
        )
        assert f"pod {pod} on node {node}: 1 of 8 {_RESOURCE}" in sick["message"]
        assert told(cluster, "Ready", status="True")
        cluster.kubectl("create", "quota", "team", "--hard=limits.memory=1Ti")
        refused = cluster.wait(
            "word of the refusal",
            lambda: told(cluster, "DevicesHealthy", reason="SuccessorRefused"),
            seconds=480,
        )
        assert "failed quota: team: must specify limits.memory for: engine" in refused["message"]
        assert place(cluster) == {pod: node}
        cluster.kubectl("delete", "quota", "team")
        cluster.wait(
            "its successor on the other node",
            lambda: pod not in (found := place(cluster)) and {*found.values()} - {"", node},
            seconds=120,
        )
        cluster.wait("Ready again", lambda: told(cluster, "Ready", status="True"), seconds=90)
        cluster.wait(
            "the all-clear", lambda: told(cluster, "DevicesHealthy", status="True"), seconds=90
        )
    events = cluster.kubectl("get", "events", "-o", "json").stdout
    assert "PodMoved" in events
