"""spec.canary behind a Gateway whose controller is Contour, judged by a real Prometheus: the
verdicts are the controller's, the shares are counted in answers, and callers ask all the while.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.support.cluster import callers, neighbours, prometheus
from tests.support.cluster.callers import Answer, ask, asking, likely, shares
from tests.support.cluster.envoys.contour_gateway import (
    PARENT,
    ContourGateway,
    contour_gateway,
    said_by_contour,
)
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.metered_pods import publish
from tests.support.cluster.operator_process import operator
from tests.support.cluster.prometheus import Prometheus
from tests.support.cluster.quick_pods import condition, engine_image, status, wait_ready
from tests.support.cluster.revision_pods import BROKEN, of_revision, revision_container

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

REQUESTS = 400
OLD, NEW, OTHER = "old", "new", "other"
ROUTE = {"parentRefs": [PARENT], "matches": ["Path", "Header", "All"]}
MODEL_HEADER = {"X-Gateway-Model-Name": "chat"}
TAKEN_UP = {"Accepted": "True", "ResolvedRefs": "True"}
GUIDE = ROOT / "docs" / "guides" / "canary.md"
QUALITY = "canary_quality"  # of an answer, as the pods might judge it themselves


@pytest.fixture(scope="module")
def routed(
    shared_namespace: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    """Two ready pods of the old revision, with a route that Contour is to take up."""
    cluster = shared_namespace
    neighbours.ensure("contour")
    model = neighbours.quick_model(
        engine_image(cluster),
        container=revision_container(),
        replicas=2,
        gateway={"httpRoute": ROUTE},
        monitoring={"podMonitor": {"interval": "2s"}},
    )
    model["spec"]["engine"] |= of_revision(OLD)
    log = tmp_path_factory.mktemp("log") / "operator.log"
    with operator(cluster, log, {"ATOM_OPERATOR_PROMETHEUS_ADDRESS": prometheus.url()}):
        neighbours.apply(cluster, model)
        wait_ready(cluster)
        yield cluster
        cluster.kubectl("delete", "atomd", "chat")


def test_a_real_controller_accepts_the_route_and_the_operator_tells_it(
    routed: LiveCluster,
) -> None:
    routed.wait("verdict", lambda: said_by_contour(routed, "chat") == TAKEN_UP)
    routed.wait("its word", lambda: condition(routed, "IntegrationsReady")["status"] == "True")


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind the Gateway."""

    cluster: LiveCluster
    gateway: ContourGateway

    def change(self, **spec: Any) -> None:
        patch = f"--patch={json.dumps({'spec': spec})}"
        self.cluster.kubectl("patch", "atomd", "chat", "--type=merge", patch)

    def wait_canary(self, reason: str, weight: int | None = None) -> dict[str, Any]:
        """The condition once its reason is this, and the route has the share."""

        def there() -> dict[str, Any] | None:
            found = condition(self.cluster, "CanaryProgressing")
            told = (status(self.cluster).get("canary") or {}).get("weight")
            taken_up = said_by_contour(self.cluster, "chat") == TAKEN_UP
            shared = weight is None or (told == weight and taken_up)
            return found if found.get("reason") == reason and shared else None

        return self.cluster.wait(f"{reason} with {weight}%", there, seconds=240)

    def wait_answers(self, *revisions: str) -> None:
        """Wait until Envoy has the route as it is: all of these answer, and no others."""
        found: Counter[str] = Counter()

        def only_these() -> bool:
            nonlocal found
            found = shares(self.gateway.url, 40)
            return set(found) == set(revisions)

        self.cluster.wait(f"answers by {revisions}", only_these, seconds=60)

    def is_followed_by(self, server: Prometheus) -> None:
        """Let Prometheus scrape what the PodMonitors choose, and what Envoy counts."""
        envoy = {
            "job_name": "envoy",
            "metrics_path": "/stats/prometheus",
            "static_configs": [{"targets": [self.gateway.metrics]}],
        }
        server.follow("canary", [*prometheus.scrapes_of(self.cluster), envoy], [])

    def rate_canary(self, quality: float) -> None:
        selector = "--selector=serving.atom.dev/deployment=chat-canary"
        found = self.cluster.kubectl("get", "pods", selector, "--output=name").stdout.split()
        for pod in found:
            publish(self.cluster, pod.removeprefix("pod/"), **{QUALITY: quality})


@pytest.fixture(scope="module")
def served(routed: LiveCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with contour_gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        found = Served(routed, gateway)
        found.wait_answers(OLD)
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    found = prometheus.running()
    yield found
    found.forget("canary")


@pytest.mark.slow
def test_every_match_of_the_route_reaches_the_model(served: Served) -> None:
    url, asked = served.gateway.url, "/v1/chat/completions"
    own = f"/{served.cluster.namespace}/chat{asked}"
    assert ask(url, own) == Answer(200, OLD, asked)  # rewritten
    assert ask(url, asked, MODEL_HEADER) == Answer(200, OLD, asked)
    assert ask(url) == Answer(200, OLD, "/v1/models")
    assert ask(url, "/metrics").status == 404


@pytest.mark.slow
def test_a_canary_takes_its_shares_step_by_step_and_is_promoted(
    served: Served, server: Prometheus
) -> None:
    quality = {"name": "quality", "query": f"avg({QUALITY})", "min": 0.5}
    canary = {
        "change": {"engine": of_revision(NEW)},
        "steps": [{"weight": 20, "seconds": 10}, {"weight": 50, "seconds": 10}],
        "analysis": {"queries": [quality, gateway_errors(served)], "intervalSeconds": 10},
    }
    with asking(served.gateway.url) as asked:
        served.change(canary=canary)
        # The first step lasts until Prometheus knows a value, so that it can be counted.
        served.wait_canary("CanaryStepping", weight=20)
        assert_share(served, NEW, 20, beside=OLD)
        served.is_followed_by(server)
        served.rate_canary(0.9)
        served.wait_canary("AwaitingPromotion", weight=50)
        assert_share(served, NEW, 50, beside=OLD)
        served.change(canary={**canary, "decision": "Promote"})
        served.wait_canary("Promoted")
        served.wait_answers(NEW)
        assert shares(served.gateway.url, REQUESTS) == {NEW: REQUESTS}
        served.change(canary=None, engine=of_revision(NEW))
        served.wait_canary("Absent")
        wait_ready(served.cluster)
        assert shares(served.gateway.url, REQUESTS) == {NEW: REQUESTS}
    assert_answered(asked)


@pytest.mark.slow
def test_a_canary_that_is_undone_by_hand_loses_no_request(served: Served) -> None:
    canary = {"change": {"engine": of_revision(OTHER)}, "weight": 30}
    with asking(served.gateway.url) as asked:
        served.change(canary=canary)
        served.wait_canary("AwaitingPromotion", weight=30)
        assert_share(served, OTHER, 30, beside=NEW)
        served.change(canary={**canary, "decision": "Undo"})
        wait_undone(served)
        served.change(canary=None)
        served.wait_canary("Absent")
    assert_answered(asked)


@pytest.mark.slow
def test_a_canary_whose_answers_are_errors_is_undone_by_what_the_gateway_counts(
    served: Served, server: Prometheus
) -> None:
    canary = {
        "change": {"engine": of_revision(BROKEN)},
        "steps": [{"weight": 20, "seconds": 600}, {"weight": 50, "seconds": 600}],
        "analysis": {"queries": [gateway_errors(served)], "intervalSeconds": 10, "failures": 2},
    }
    served.is_followed_by(server)
    with asking(served.gateway.url) as asked:
        served.change(canary=canary)
        served.wait_canary("CanaryStepping", weight=20)
        undone = wait_undone(served)
    # Of two counters, scraped in turn and each drawn out to the whole window: 1, or nearly.
    words = r"query gateway-errors is (\S+), at most 0\.01 is asked, 2 times in a row"
    assert re.search(words, undone["message"]), undone["message"]
    assert {answer.by for answer in asked.failures} == {BROKEN}
    assert {answer.status for answer in asked.failures} == {500}
    served.change(canary=None)
    served.wait_canary("Absent")


def test_without_a_route_it_is_refused_by_name(routed: LiveCluster) -> None:
    canary = {"change": {"engine": of_revision(NEW)}, "weight": 10}
    patch = json.dumps({"spec": {"canary": canary, "gateway": None}})
    refused = routed.kubectl(
        "patch", "atomd", "chat", "--type=merge", f"--patch={patch}", check=False
    )
    assert refused.returncode != 0
    assert "canary needs gateway.httpRoute" in refused.stderr


def gateway_errors(served: Served) -> dict[str, Any]:
    """The guide's query of what Envoy counts, over a time in which a test ends."""
    text = GUIDE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(analysis:\n  queries:\n.*?)```", text, re.DOTALL)
    (found,) = yaml.safe_load(block)["analysis"]["queries"]
    query = found["query"].replace("NAMESPACE", served.cluster.namespace).replace("5m", "20s")
    return {**found, "query": query}


def wait_undone(served: Served) -> dict[str, Any]:
    """Wait until the canary has no share, and its pods are gone."""
    cluster = served.cluster
    undone = served.wait_canary("CanaryUndone", weight=0)
    served.wait_answers(NEW)
    assert shares(served.gateway.url, REQUESTS) == {NEW: REQUESTS}
    cluster.wait("no canary", lambda: cluster.get("atomd", "chat-canary") is None)
    selector = "--selector=serving.atom.dev/deployment=chat-canary"
    listed = ("get", "pods", selector, "--output=name")
    cluster.wait("no pods of it", lambda: not cluster.kubectl(*listed).stdout)
    return undone


def assert_share(served: Served, canary: str, percent: int, beside: str) -> None:
    """Count by whom requests are answered, once Envoy has the share."""
    served.wait_answers(canary, beside)
    assert condition(served.cluster, "IntegrationsReady")["status"] == "True"
    expected = likely(REQUESTS, percent)
    found = shares(served.gateway.url, REQUESTS)
    assert set(found) == {canary, beside}
    assert found[canary] in expected, f"{found} of {REQUESTS}, {percent}% is {expected}"


def assert_answered(asked: callers.Asked) -> None:
    assert asked.failures == []
    assert len(asked.answers) > REQUESTS
