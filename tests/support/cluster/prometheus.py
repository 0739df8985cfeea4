"""A real Prometheus beside the embedded cluster: what it is to scrape and to watch for, as
prometheus-operator would write it from PodMonitors and PrometheusRules, and what it has seen.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import target
from devcluster.neighbours.prometheus import PORT
from devcluster.node import network
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.neighbours import ensure, state_of

_POD = "__meta_kubernetes_pod"
_COPIED = {
    "__meta_kubernetes_namespace": "namespace",
    f"{_POD}_name": "pod",
    f"{_POD}_container_name": "container",
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str
    folder: Path

    def follow(self, name: str, scrapes: Sequence[Any], groups: Sequence[Any]) -> None:
        """Scrape and watch for these from now on, instead of what this name stood for."""
        contents = {"scrape": {"scrape_configs": scrapes}, "rules": {"groups": groups}}
        for kind, content in contents.items():
            folder = self.folder / kind
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
        self._exchange("/-/reload", method="POST")

    def forget(self, name: str) -> None:
        self.follow(name, [], [])

    def values(self, query: str) -> list[float]:
        """Of every series that the query gives now."""
        asked = urllib.parse.urlencode({"query": query})
        found = self.get(f"/api/v1/query?{asked}")["result"]
        return [float(series["value"][1]) for series in found]

    def get(self, path: str) -> Any:
        return json.loads(self._exchange(path))["data"]

    def targets(self, job: str) -> list[Mapping[str, Any]]:
        found = self.get("/api/v1/targets?state=active")["activeTargets"]
        return [item for item in found if item["scrapePool"] == job]

    def firing(self) -> set[str]:
        found = self.get("/api/v1/alerts")["alerts"]
        return {item["labels"]["alertname"] for item in found if item["state"] == "firing"}

    def rules(self) -> list[Mapping[str, Any]]:
        return [rule for group in self.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _exchange(self, path: str, method: str = "GET") -> str:
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())


def running() -> Prometheus:
    """The one of the embedded cluster, started where it is not."""
    ensure("prometheus")
    return Prometheus(url(), state_of("prometheus"))


def url() -> str:
    """Where it answers while it runs."""
    settings = target.resolve(os.environ).settings
    return f"http://{network.uplink(settings.instance).node_address}:{PORT}"


def scrapes_of(cluster: LiveCluster) -> list[dict[str, Any]]:
    """What prometheus-operator makes of the PodMonitors of a namespace."""
    listed = json.loads(cluster.kubectl("get", "podmonitors", "--output=json").stdout)["items"]
    return [
        _scrape(cluster.namespace, monitor, number, endpoint)
        for monitor in listed
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def _scrape(
    namespace: str, monitor: Mapping[str, Any], number: int, endpoint: Mapping[str, Any]
) -> dict[str, Any]:
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    chosen = spec["selector"]["matchLabels"]
    targets = {_label(key): _sanitised(key) for key in spec["podTargetLabels"]}
    discovery = {
        "role": "pod",
        "kubeconfig_file": str(state_of("prometheus") / "kubeconfig"),
        "namespaces": {"names": [namespace]},
    }
    return {
        "job_name": f"podMonitor/{namespace}/{name}/{number}",
        "metrics_path": endpoint["path"],
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "kubernetes_sd_configs": [discovery],
        "relabel_configs": [
            {"action": "drop", "source_labels": [f"{_POD}_phase"], "regex": "Failed|Succeeded"},
            *(_keep(_label(key), value) for key, value in chosen.items()),
            _keep(f"{_POD}_container_port_name", endpoint["port"]),
            *(
                {"source_labels": [source], "target_label": label}
                for source, label in {**_COPIED, **targets}.items()
            ),
        ],
    }


def _keep(label: str, value: str) -> dict[str, Any]:
    return {"action": "keep", "source_labels": [label], "regex": re.escape(value)}


def _label(key: str) -> str:
    return f"{_POD}_label_{_sanitised(key)}"


def _sanitised(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def rules_of(cluster: LiveCluster) -> list[dict[str, Any]]:
    """The groups of the PrometheusRules of a namespace, whose alerts wait for nothing."""
    listed = json.loads(cluster.kubectl("get", "prometheusrules", "--output=json").stdout)["items"]
    return [at_once(group) for item in listed for group in item["spec"]["groups"]]


def at_once(group: Mapping[str, Any]) -> dict[str, Any]:
    """Without the minutes that a symptom has to last: what is tested is the symptom."""
    rules = [{key: value for key, value in rule.items() if key != "for"} for rule in group["rules"]]
    return {**group, "rules": rules}
