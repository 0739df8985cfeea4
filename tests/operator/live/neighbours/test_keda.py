"""A model's replicas under a real KEDA that asks a real Prometheus; tests follow one model's life.

The engine's pods are stand-ins that publish the load that a test wants. From zero the wish for a
replica comes from a gateway's metric, as docs/guides/autoscaling.md has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cluster import neighbours, prometheus
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.metered_pods import gateway, metered_container, publish
from tests.support.cluster.operator_process import operator
from tests.support.cluster.prometheus import Prometheus
from tests.support.cluster.quick_pods import condition, engine_image, status, suspend

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

PROMETHEUS = "http://127.0.0.1:9090"  # as KEDA, a process of the node, reaches it
NOBODY = "http://127.0.0.1:9"
SCALING: dict[str, Any] = {
    "method": "KEDA",
    "minReplicas": 0,
    "maxReplicas": 2,
    "targetConcurrency": 10,
    "cooldownSeconds": 15,
    "activationQuery": "sum(gateway_queue_length)",
    "prometheus": {"serverAddress": PROMETHEUS},
}
IDLE = {"atom_ready": 1, "atom_requests_running": 0, "atom_kv_cache_usage_ratio": 0.1}


@dataclass(frozen=True, slots=True)
class Scaled:
    cluster: LiveCluster
    prometheus: Prometheus

    def pods(self) -> list[str]:
        selector = "--selector=serving.atom.dev/deployment=chat"
        listed = self.cluster.kubectl("get", "pods", selector, "--output=name").stdout
        return [name.partition("/")[2] for name in listed.split()]

    def wait_for(self, replicas: int) -> None:
        def reached() -> bool:
            ready = condition(self.cluster, "Ready").get("status") == "True"
            return ready and status(self.cluster).get("readyReplicas", 0) == replicas

        self.cluster.wait(f"{replicas} replicas", reached, seconds=180)

    def wait_said(self, status: str) -> str:
        """The message of IntegrationsReady once it has this status."""

        def said() -> str | None:
            found = condition(self.cluster, "IntegrationsReady")
            return str(found["message"]) if found.get("status") == status else None

        return self.cluster.wait(f"IntegrationsReady={status}", said, seconds=240)


@pytest.fixture(scope="module")
def scaled(
    shared_namespace: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scaled]:
    """A model that may go to zero, and a gateway with a queue."""
    neighbours.ensure("keda")
    cluster, server = shared_namespace, prometheus.running()
    image = engine_image(cluster)
    cluster.kubectl("apply", "--filename=-", manifest=gateway(image, gateway_queue_length=1))
    with operator(cluster, tmp_path_factory.mktemp("log") / "operator.log"):
        model = neighbours.quick_model(
            image,
            container=metered_container(**IDLE),
            autoscaling=SCALING,
            monitoring={"podMonitor": {"interval": "2s"}},
        )
        neighbours.apply(cluster, model)
        cluster.wait("PodMonitor", lambda: cluster.get("podmonitor", "chat"))
        server.follow("keda", [*prometheus.scrapes_of(cluster), queue_of(cluster)], [])
        found = Scaled(cluster, server)
        found.wait_for(1)
        yield found
        cluster.kubectl("delete", "atomd", "chat")
        cluster.wait("end of the ScaledObject", lambda: not cluster.get("scaledobject", "chat"))
    server.forget("keda")


def queue_of(cluster: LiveCluster) -> dict[str, Any]:
    address = cluster.wait("address", lambda: cluster.get("pod", "gateway")["status"].get("podIP"))
    return {"job_name": "gateway", "static_configs": [{"targets": [f"{address}:8000"]}]}


def change(cluster: LiveCluster, **scaling: Any) -> None:
    patch = json.dumps({"spec": {"autoscaling": {**SCALING, **scaling}}})
    cluster.kubectl("patch", "atomd", "chat", "--type=merge", f"--patch={patch}")


def test_an_autoscaler_that_works_is_said(scaled: Scaled) -> None:
    assert "ScaledObject" in scaled.wait_said("True")
    conditions = scaled.cluster.get("scaledobject", "chat")["status"]["conditions"]
    assert {item["type"]: item["status"] for item in conditions}["Ready"] == "True"


@pytest.mark.slow
def test_load_adds_a_replica_and_leaves_the_wish_alone(scaled: Scaled) -> None:
    (pod,) = scaled.pods()
    publish(scaled.cluster, pod, atom_requests_running=15)  # 10 are aimed at
    scaled.wait_for(2)
    assert scaled.cluster.get("atomd", "chat")["spec"]["replicas"] == 1


@pytest.mark.slow
def test_a_trigger_that_fails_is_told_and_takes_no_replica(scaled: Scaled) -> None:
    change(scaled.cluster, prometheus={"serverAddress": NOBODY})
    message = scaled.wait_said("False")
    assert "KEDA gets no value for running, waiting, kv-usage" in message
    assert len(scaled.pods()) == 2
    change(scaled.cluster)
    scaled.wait_said("True")


@pytest.mark.slow
def test_load_starts_nothing_of_what_is_suspended(scaled: Scaled) -> None:
    """The gateway still has its queue, and KEDA its wish."""
    suspend(scaled.cluster, True)

    def scaler() -> dict[str, Any]:
        return dict(scaled.cluster.get("scaledobject", "chat") or {})

    def told(kind: str) -> str | None:
        found = {item["type"]: item["status"] for item in scaler()["status"]["conditions"]}
        return found.get(kind)

    scaled.cluster.wait("Paused", lambda: told("Paused") == "True", seconds=120)
    assert scaler()["metadata"]["annotations"]["autoscaling.keda.sh/paused-replicas"] == "0"
    scaled.cluster.wait("the end of the last pod", lambda: not scaled.pods())
    assert (scaled.cluster.get("deployment", "chat") or {})["spec"]["replicas"] == 0
    suspend(scaled.cluster, False)
    scaled.wait_for(1)
    assert told("Paused") != "True"


@pytest.mark.slow
def test_idleness_takes_every_replica_away(scaled: Scaled) -> None:
    publish(scaled.cluster, "gateway", gateway_queue_length=0)
    for pod in scaled.pods():
        publish(scaled.cluster, pod, atom_requests_running=0, atom_kv_cache_usage_ratio=0)
    scaled.wait_for(0)
    assert condition(scaled.cluster, "Ready")["reason"] == "ScaledToZero"


@pytest.mark.slow
def test_the_first_request_brings_one_back(scaled: Scaled) -> None:
    publish(scaled.cluster, "gateway", gateway_queue_length=3)
    scaled.wait_for(1)
