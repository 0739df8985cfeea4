"""The installed operator, with the chart's own rights, beside other systems' kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.cluster import upstream_crds
from tests.support.cluster.live_cluster import connect
from tools.kube import Kube, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

NAME = "scaled"
ASKED: dict[str, Any] = {
    "autoscaling": {"maxReplicas": 2, "method": "HPA"},
    "gateway": {
        "inferencePool": {"name": "picker"},
        "httpRoute": {"parentRefs": [{"name": "gate"}]},
    },
    "monitoring": {"podMonitor": {}, "alerts": {}, "dashboard": {}},
    "networkPolicy": {},
}
KINDS = "networkpolicy,inferencepool,httproute,podmonitor,prometheusrule,hpa"


@pytest.fixture(scope="module")
def scaled(kube: Kube, images: Images) -> Iterator[Kube]:
    """The demo's model with everything that its spec can ask of others."""
    cluster = connect()
    if isinstance(cluster, str):
        pytest.skip(cluster)
    upstream_crds.install(cluster)
    manifest = yaml.safe_load(demo_manifest(images))
    manifest["metadata"]["name"] = NAME
    manifest["spec"].update(ASKED)
    kube.apply(yaml.safe_dump(manifest))
    yield kube
    kube.kubectl("delete", "atomd", NAME)


def test_every_object_is_there_and_the_model_serves(scaled: Kube) -> None:
    """All but who comes by the Gateway, which is its users' to make and is not there."""

    def serves() -> str | None:
        item = scaled.get("atomd", NAME)
        ready = condition(item, "Ready")
        return (
            ready["message"] if is_current(item) and "serve" in ready.get("message", "") else None
        )

    message = wait_until(f"{NAME} serves", serves, seconds=240.0)
    assert "gate does not exist" in message
    assert condition(scaled.get("atomd", NAME), "Ready")["reason"] == "RouteNotReady"
    found = scaled.get(KINDS, f"--selector=serving.atom.dev/deployment={NAME}")["items"]
    assert sorted(item["kind"] for item in found) == [
        "HTTPRoute",
        "HorizontalPodAutoscaler",
        "InferencePool",
        "NetworkPolicy",
        "PodMonitor",
        "PrometheusRule",
    ]


def test_an_autoscaler_without_metrics_is_said_in_its_own_words(scaled: Kube) -> None:
    def failing() -> bool:
        return condition(scaled.get("hpa", NAME), "ScalingActive").get("status") == "False"

    wait_until("the autoscaler's own word", failing, seconds=120.0)
    # Its word wakes nothing: one more reconcile, before the one that comes a minute after the last.
    scaled.kubectl("annotate", "atomd", NAME, "looked=again")

    def said() -> bool:
        found = condition(scaled.get("atomd", NAME), "IntegrationsReady")
        return found["status"] == "False" and "HorizontalPodAutoscaler" in found["message"]

    wait_until("IntegrationsReady=False in the autoscaler's words", said, seconds=120.0)


def test_the_operator_leaves_the_number_of_replicas_alone(scaled: Kube) -> None:
    scaled.kubectl("scale", f"deployment/{NAME}", "--replicas=0")
    zero = wait_until(
        "status without replicas",
        lambda: (
            (found := condition(scaled.get("atomd", NAME), "Ready"))["reason"] == "ScaledToZero"
            and found
        ),
    )
    assert zero["status"] == "False", "an autoscaler asks for one, and somebody took it away"
    scaled.kubectl("annotate", "atomd", NAME, "touched=yes")  # one more reconcile
    assert scaled.get("deployment", NAME)["spec"]["replicas"] == 0
