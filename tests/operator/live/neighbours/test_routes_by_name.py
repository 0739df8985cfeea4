"""Two models behind one Gateway without host names: a request reaches the one that it names, by its
path or by the header that body-based routing sets, through a real Envoy.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cluster import neighbours, upstream_crds
from tests.support.cluster.envoys.route_gateway import envoy_gateway, take_up
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import engine_image

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

# The older one answers whoever names no model.
MODELS = {"chat": ["Path", "Header", "All"], "code": ["Path", "Header"]}
HEADER = "X-Gateway-Model-Name"
# Answers with its own name and the path that it was asked for.
_SERVER = """
import json, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Named(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps([sys.argv[1], self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
ThreadingHTTPServer(("", 8000), Named).serve_forever()
"""
GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "gate"},
    "spec": {
        "gatewayClassName": "envoy-of-the-test",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
    },
}


@dataclass(frozen=True, slots=True)
class Gateway:
    cluster: LiveCluster
    url: str

    def ask(self, path: str, model: str | None = None) -> tuple[str, str] | int:
        """Which model answered and the path that it saw, or the Gateway's own status."""
        headers = {} if model is None else {HEADER: model}
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                name, seen = json.loads(answer.read())
                return name, seen
        except urllib.error.HTTPError as error:
            return error.code

    def answers(self) -> bool:
        try:
            return self.ask("/v1/models") == ("chat", "/v1/models")
        except OSError:
            return False


def model(image: str, name: str, matches: list[str]) -> dict[str, Any]:
    made = neighbours.quick_model(
        image,
        container={"command": ["python3", "-c", _SERVER, name]},
        gateway={"httpRoute": {"parentRefs": [{"name": "gate"}], "matches": matches}},
    )
    made["metadata"]["name"] = name
    made["spec"]["model"]["servedName"] = name
    return dict(made)


def wait_told(cluster: LiveCluster, name: str, kind: str, status: str) -> None:
    def told() -> bool:
        found = (cluster.get("atomd", name) or {}).get("status", {}).get("conditions", ())
        return any(item["type"] == kind and item["status"] == status for item in found)

    cluster.wait(f"{kind}={status} of {name}", told, seconds=240)


@pytest.fixture(scope="module")
def gateway(
    shared_namespace: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    cluster, folder = shared_namespace, tmp_path_factory.mktemp("gateway")
    upstream_crds.install(cluster)
    image = engine_image(cluster)
    neighbours.apply(cluster, json.loads(json.dumps(GATEWAY)))
    with operator(cluster, folder / "operator.log"):
        routes = []
        for name, matches in MODELS.items():
            neighbours.apply(cluster, model(image, name, matches))
            routes.append(
                cluster.wait(f"route {name}", lambda name=name: cluster.get("httproute", name))
            )
        with envoy_gateway(cluster, routes, folder) as url:
            for name, route in zip(MODELS, routes, strict=True):
                wait_told(cluster, name, "IntegrationsReady", "Unknown")  # nobody took it up
                take_up(cluster, route)
            for name in MODELS:
                wait_told(cluster, name, "IntegrationsReady", "True")
                wait_told(cluster, name, "Ready", "True")
            found = Gateway(cluster, url)
            cluster.wait("an answer through Envoy", found.answers, seconds=60)
            yield found
        cluster.kubectl("delete", "atomd", "--all")


@pytest.mark.parametrize("name", MODELS)
def test_a_path_names_the_model_and_the_engine_sees_its_own(gateway: Gateway, name: str) -> None:
    path = f"/{gateway.cluster.namespace}/{name}/v1/chat/completions"
    assert gateway.ask(path) == (name, "/v1/chat/completions")


@pytest.mark.parametrize("name", MODELS)
def test_a_header_names_the_model(gateway: Gateway, name: str) -> None:
    assert gateway.ask("/v1/chat/completions", model=name) == (name, "/v1/chat/completions")


def test_who_names_no_model_reaches_the_one_that_takes_all(gateway: Gateway) -> None:
    assert gateway.ask("/v1/models") == ("chat", "/v1/models")
    assert gateway.ask("/v1/models", model="nobody") == ("chat", "/v1/models")


def test_what_is_of_no_model_reaches_none(gateway: Gateway) -> None:
    assert gateway.ask("/metrics") == 404
    assert gateway.ask(f"/{gateway.cluster.namespace}/chat/metrics") == 404
