"""An autoscaler never asks for more than the nodes hold, and of what runs it takes nothing away.

Beside KEDA's real controllers and those of HorizontalPodAutoscalers, on a node whose GPUs are
resources and labels only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import neighbours, prometheus, upstream_crds
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.metered_pods import metered_container
from tests.support.cluster.node_gpus import RESOURCE, give_gpus, node_gpus
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, engine_image, quick_container, status

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

PROMETHEUS = "http://127.0.0.1:9090"  # as KEDA, a process of the node, reaches it
SMALL = {
    "requests": {"cpu": "10m", "memory": "32Mi", RESOURCE: "1"},
    "limits": {RESOURCE: "1"},
}
SCALING: dict[str, Any] = {
    "method": "KEDA",
    "targetConcurrency": 10,
    "prometheus": {"serverAddress": PROMETHEUS},
}
BUSY = {"atom_ready": 1, "atom_requests_running": 40, "atom_kv_cache_usage_ratio": 0.1}


@pytest.fixture
def two_gpus(live_cluster: LiveCluster) -> Iterator[None]:
    with node_gpus(live_cluster, 2):
        yield


def model(image: str, container: dict[str, Any], **autoscaling: Any) -> dict[str, Any]:
    """Of one GPU a replica, of which four are asked for."""
    made = neighbours.quick_model(
        image,
        container={**container, "resources": SMALL},
        autoscaling={"minReplicas": 1, "maxReplicas": 4, **autoscaling},
    )
    made["spec"]["accelerator"] = {"type": "amd", "product": "MI300X"}
    return dict(made)


def wait_for(cluster: LiveCluster, replicas: int, kind: str, field: str) -> None:
    """So many serve, no pod more is asked for, and the autoscaler's most is as many."""

    def reached() -> bool:
        scaler = (cluster.get(kind, "chat") or {"spec": {}})["spec"]
        return (
            scaler.get(field) == replicas
            and status(cluster).get("readyReplicas") == replicas
            and (cluster.get("deployment", "chat") or {})["spec"]["replicas"] == replicas
        )

    cluster.wait(f"{replicas} replicas, and no more", reached, seconds=240)
    limited = condition(cluster, "CapacityLimited")
    assert f"the nodes hold {replicas} replicas" in limited["message"]


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus")
def test_keda_asks_for_what_the_nodes_hold(namespaced: LiveCluster, tmp_path: Path) -> None:
    """All are busy all the time: KEDA's wish is four."""
    neighbours.ensure("keda")
    upstream_crds.install(namespaced)  # PodMonitor is prometheus-operator's
    server, image = prometheus.running(), engine_image(namespaced)
    with operator(namespaced, tmp_path / "operator.log"):
        made = model(image, metered_container(**BUSY), **SCALING)
        made["spec"]["monitoring"] = {"podMonitor": {"interval": "2s"}}
        neighbours.apply(namespaced, made)
        namespaced.wait("PodMonitor", lambda: namespaced.get("podmonitor", "chat"))
        server.follow("ceilings", prometheus.scrapes_of(namespaced), [])
        wait_for(namespaced, 2, "scaledobject", "maxReplicaCount")
        give_gpus(3)
        wait_for(namespaced, 3, "scaledobject", "maxReplicaCount")
        namespaced.kubectl("delete", "atomd", "chat")
        gone = "end of the ScaledObject"
        namespaced.wait(gone, lambda: not namespaced.get("scaledobject", "chat"))
    server.forget("ceilings")


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus")
def test_a_horizontal_pod_autoscaler_keeps_what_was_placed(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    """Its controller has no metrics and still holds whoever asks for more to its bounds."""
    image = engine_image(namespaced)
    with operator(namespaced, tmp_path / "operator.log"):
        made = model(image, quick_container(), method="HPA")
        made["spec"]["replicas"] = 4
        neighbours.apply(namespaced, made)
        wait_for(namespaced, 2, "hpa", "maxReplicas")
        for gpus in (2, 3):
            give_gpus(gpus)
            most = f"{gpus} at most"
            namespaced.wait(most, lambda gpus=gpus: most_of(namespaced) == gpus, seconds=240)
            namespaced.kubectl("scale", "deployment/chat", "--replicas=4")
            wait_for(namespaced, gpus, "hpa", "maxReplicas")


def most_of(cluster: LiveCluster) -> int | None:
    found = cluster.get("hpa", "chat")
    return found["spec"]["maxReplicas"] if found else None
