"""Rollouts on a cluster whose AMD GPUs are all in use: each chosen for what is free, none stuck.

The node's GPUs are resources and labels only; the pods run a few lines instead of an engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.node_gpus import NODE, RESOURCE, give_gpus, node_gpus
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


@pytest.fixture
def two_gpus(live_cluster: LiveCluster) -> Iterator[None]:
    """The real node has two GPUs, and afterwards as many as before."""
    with node_gpus(live_cluster, 2):
        yield


def apply(cluster: LiveCluster, note: str, *, gpus: int = 1, deadline: int = 60) -> None:
    small = {"cpu": "20m", "memory": "64Mi", RESOURCE: str(gpus)}
    container = quick_container(resources={"requests": small, "limits": {RESOURCE: str(gpus)}})
    manifest = atom_deployment(
        engine={"image": engine_image(cluster)},
        template={
            "metadata": {"annotations": {"note": note}},
            "spec": {"containers": [container]},
        },
        rollout={"progressDeadlineSeconds": deadline, "drainSeconds": 0},
        accelerator={"type": "amd", "product": "MI300X"},
        replicas=2,
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def rollout(cluster: LiveCluster) -> dict[str, Any]:
    return dict(status(cluster)["rollout"])


def free_gpus(cluster: LiveCluster) -> int:
    """What no pod of the namespace has asked for."""
    pods = json.loads(cluster.kubectl("get", "pods", "-o", "json").stdout)["items"]
    taken = sum(
        int(container["resources"]["limits"].get(RESOURCE, 0))
        for pod in pods
        if pod["spec"].get("nodeName")
        for container in pod["spec"]["containers"]
    )
    node = cluster.get("node", NODE) or {}
    return int(node["status"]["allocatable"][RESOURCE]) - taken


@pytest.mark.usefixtures("two_gpus")
def test_a_full_cluster_rolls_out_in_place_and_a_free_gpu_is_used(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    """Half a minute: pods follow one another, and each waits five seconds before its end until
    no client sends it anything."""
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster, "first")
        first = wait_ready(cluster)["revision"]
        assert free_gpus(cluster) == 0

        apply(cluster, "second")
        second = wait_ready(cluster, 90)
        assert second["revision"] != first
        assert rollout(cluster)["strategy"] == "InPlace"
        assert "no eligible node has 1 amd.com/gpu free" in rollout(cluster)["reason"]

        give_gpus(3)
        cluster.wait("end of the last old pod", lambda: free_gpus(cluster) == 1)
    # Another operator, because nodes and pods are remembered for a few seconds.
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster, "third")
        wait_ready(cluster, 90)
        assert rollout(cluster)["strategy"] == "Surge"
        assert f"node {NODE} has 1 amd.com/gpu free" in rollout(cluster)["reason"]


@pytest.mark.whole
@pytest.mark.usefixtures("two_gpus")
def test_pods_that_never_find_their_gpus_give_way_to_those_that_had_them(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    """Most of a minute: a rollout fails when its deadline of twenty seconds is past, and then pods
    follow one another."""
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster, "first")
        first = wait_ready(cluster)["revision"]

        apply(cluster, "second", gpus=2, deadline=20)  # two pods of two, and there are two in all
        cluster.wait(
            "what is missing",
            lambda: condition(cluster, "Scheduled").get("reason") == "InsufficientAccelerators",
        )
        assert rollout(cluster)["strategy"] == "Recreate"
        cluster.wait(
            "rollback",
            lambda: condition(cluster, "Degraded").get("reason") == "RolledBack",
            seconds=90,
        )
        cluster.wait("both old pods", lambda: status(cluster)["readyReplicas"] == 2, seconds=90)
        assert status(cluster)["revision"] == first
        assert "Insufficient amd.com/gpu" in condition(cluster, "Degraded")["message"]
