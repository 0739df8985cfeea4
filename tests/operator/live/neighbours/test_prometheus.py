"""A real engine under a real Prometheus: targets, rules, alerts and the dashboard's queries."""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from devcluster import target
from devcluster.node import network
from tests.support.cluster import prometheus
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.prometheus import Prometheus
from tests.support.cluster.quick_pods import engine_image
from tools.kube import Kube
from tools.on_cluster import choose_images, demo_manifest, offer_folders

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

NAME = "atom-tiny"
PREFILL = f"{NAME}-prefill"
DRAFTS = {"method": "ngram", "tokens": 2, "adaptive": False}  # of which a panel is
MONITORING = {"podMonitor": {"interval": "2s"}, "alerts": {}, "dashboard": {}}
# Of tiers, targets and roles are panels, too. No request misses targets as loose as these.
TIERS = {"kv": {"hostMemory": "64Mi", "disk": {"size": "128Mi"}}}
TIER_FLAGS = ["--kv-offload-min-tokens=16", "--kv-offload-write=through"]
TARGETS = {"ttft": "120s", "itl": "60s"}
DIVIDED = 96  # tokens of a prompt that a prefill pod computes
ROLES = {"prefill": {}, "decide": {"minNonCachedTokens": DIVIDED}}
# Of answers, which prefill pods compute only while no decode pod serves.
OF_ANSWERS = ("Time between tokens", "Drafted tokens that were kept")
# Steps after which a pod predicts latencies (`outlook/step_costs.py`): a prefill pod computes one
# for each long prompt.
PREDICTS_AFTER = 8


@dataclass(frozen=True, slots=True)
class Watched:
    cluster: LiveCluster
    prometheus: Prometheus
    operator: str  # host:port of its metrics, as the cluster's network reaches it

    @property
    def job(self) -> str:
        return f"podMonitor/{self.cluster.namespace}/{NAME}/0"

    def ask(self, begin: int) -> None:
        """Two requests with prompts that begin anew: the short one is the decode pod's alone, and
        the pages of the long one come from the prefill pod. The model repeats itself before long,
        as it always takes the likeliest token: drafts are found."""
        kube = Kube(target.resolve(os.environ), self.cluster.namespace)
        headers = {"Content-Type": "application/json"}
        with kube.port_forward(f"service/{NAME}", 8000) as url:
            for words in (20, DIVIDED):
                prompt = f"{begin} " + "to be " * words
                asked = {"model": NAME, "prompt": prompt, "max_tokens": 150, "temperature": 0}
                body = json.dumps({**asked, "ignore_eos": True}).encode()
                request = urllib.request.Request(f"{url}/v1/completions", body, headers)
                with urllib.request.urlopen(request, timeout=120) as answer:
                    assert answer.status == 200


@pytest.fixture(scope="module")
def watched(
    shared_namespace: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """The demo's model in two roles with tiers, Ready, and a Prometheus that follows what is
    rendered for it."""
    cluster, server = shared_namespace, prometheus.running()
    engine_image(cluster)  # or a skip with the reason
    images = choose_images(target.resolve(os.environ), os.environ)
    offer_folders(Kube(target.resolve(os.environ), cluster.namespace), images)
    manifest = yaml.safe_load(demo_manifest(images))
    manifest["spec"] |= {
        "monitoring": MONITORING,
        "cache": TIERS,
        "slo": TARGETS,
        "disaggregation": ROLES,
        "frontend": {"replicas": 1},
    }
    manifest["spec"].setdefault("engine", {}).update(speculative=DRAFTS, extraArgs=TIER_FLAGS)
    port = free_port()
    address = network.uplink(target.resolve(os.environ).settings.instance).host_address
    log = tmp_path_factory.mktemp("log") / "operator.log"
    with operator(cluster, log, {"ATOM_OPERATOR_METRICS_PORT": str(port)}):
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
        for name in (NAME, PREFILL):
            for kind in ("podmonitor", "prometheusrule", "atomd"):
                cluster.wait(kind, lambda kind=kind, name=name: cluster.get(kind, name))
        server.follow("atom", prometheus.scrapes_of(cluster), prometheus.rules_of(cluster))
        for name in (NAME, PREFILL):
            cluster.wait(f"{name} Ready", lambda name=name: ready(cluster, name), seconds=400)
        cluster.wait("a Service of the frontend", lambda: leads_to_frontend(cluster), seconds=180)
        yield Watched(cluster, server, f"{address}:{port}")
        cluster.kubectl("delete", "atomd", NAME)
    server.forget("atom")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def ready(cluster: LiveCluster, name: str) -> bool:
    found = (cluster.get("atomd", name) or {}).get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in found)


def leads_to_frontend(cluster: LiveCluster) -> bool:
    selector = (cluster.get("service", NAME) or {}).get("spec", {}).get("selector", {})
    return bool(selector.get("app.kubernetes.io/component") == "frontend")


def queries(cluster: LiveCluster) -> Iterator[tuple[str, str]]:
    """(panel, query) of the dashboards of both roles, as Grafana would send it."""
    selector = "--selector=grafana_dashboard=1"
    text = cluster.kubectl("get", "configmaps", selector, "--output=json").stdout
    found = json.loads(text)["items"]
    assert len(found) == 2
    for config_map in found:
        (text,) = config_map["data"].values()
        dashboard = json.loads(text)
        computes_prompts = dashboard["title"].endswith(PREFILL)
        for panel in dashboard["panels"]:
            if computes_prompts and panel["title"] in OF_ANSWERS:
                continue
            for item in panel["targets"]:
                yield f"{dashboard['title']}: {panel['title']}", item["expr"]


def test_every_pod_is_a_target_that_is_up(watched: Watched) -> None:
    def up() -> list[Any]:
        found = watched.prometheus.targets(watched.job)
        return [item for item in found if item["health"] == "up"]

    (found,) = watched.cluster.wait("a target that is up", lambda: up() or None)
    assert found["labels"]["serving_atom_dev_deployment"] == NAME
    assert found["labels"]["namespace"] == watched.cluster.namespace


def test_every_rule_is_loaded_and_evaluated(watched: Watched) -> None:
    def evaluated() -> list[Any] | None:
        found = list(watched.prometheus.rules())
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    rules = watched.cluster.wait("rules", evaluated)
    rendered = prometheus.rules_of(watched.cluster)
    assert len(rendered) == 2
    wanted = {rule["alert"] for group in rendered for rule in group["rules"]}
    assert wanted >= {"AtomKvTierFails", "AtomSloMissed", "AtomKvTransfersFail"}
    assert {rule["name"] for rule in rules} >= wanted
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []


def test_every_query_of_the_dashboard_has_data(watched: Watched) -> None:
    asked = list(queries(watched.cluster))
    assert len(asked) > 50
    silent, begins = asked, itertools.count(PREDICTS_AFTER)
    for begin in range(PREDICTS_AFTER):
        watched.ask(begin)

    def all_have_data() -> bool:
        nonlocal silent
        watched.ask(next(begins))  # a rate needs requests between two scrapes
        silent = [item for item in asked if not known(watched.prometheus.values(item[1]))]
        return not silent

    try:
        watched.cluster.wait("data for every query", all_have_data, seconds=60)
    finally:
        assert silent == []


def known(values: list[float]) -> list[float]:
    """Of a quotient of two that are zero nothing is known."""
    return [value for value in values if not math.isnan(value)]


def test_an_alert_fires_when_nothing_serves_and_ends_with_it(watched: Watched) -> None:
    watched.cluster.wait("calm", lambda: not watched.prometheus.firing())
    for replicas, expected in ((0, {"AtomNoReplicaReady"}), (1, set())):
        watched.cluster.kubectl("scale", f"atomd/{NAME}", f"--replicas={replicas}")
        watched.cluster.wait(
            f"alerts with {replicas} replicas",
            lambda expected=expected: watched.prometheus.firing() == expected,
            seconds=300,
        )


def test_the_charts_alert_ends_when_an_operator_reconciles(watched: Watched) -> None:
    def firing(alert: str) -> bool:
        return alert in watched.prometheus.firing()

    watched.prometheus.follow("operator", [], chart_rules())
    try:
        watched.cluster.wait("alert", lambda: firing("AtomOperatorNotReconciling"))
        watched.prometheus.follow("operator", [scrape_of_operator(watched)], chart_rules())
        watched.cluster.wait("calm", lambda: not firing("AtomOperatorNotReconciling"))
        assert watched.prometheus.values('atom_operator_leader{namespace="atom-system"}') == [1]
        assert not firing("AtomOperatorFailing")
    finally:
        watched.prometheus.forget("operator")


def chart_rules() -> list[dict[str, Any]]:
    text = Kube(target.resolve(os.environ)).run(
        "helm", "template", "atom-operator", str(ROOT / "charts" / "atom-operator"),
        "--namespace=atom-system", "--set=metrics.alerts.enabled=true", "--kube-version=1.34.0",
    )  # fmt: skip
    objects = [item for item in yaml.safe_load_all(text) if item]
    (rule,) = (item for item in objects if item["kind"] == "PrometheusRule")
    return [prometheus.at_once(group) for group in rule["spec"]["groups"]]


def scrape_of_operator(watched: Watched) -> dict[str, Any]:
    """The operator of these tests, which runs on the host, as if it were the chart's."""
    where = {"targets": [watched.operator], "labels": {"namespace": "atom-system"}}
    return {"job_name": "operator", "static_configs": [where]}
