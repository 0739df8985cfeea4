"""The demo's model `chat` with spec.gateway.prefixAware, three engine pods and an operator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster import target
from tests.support.cluster import neighbours
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import engine_image, wait_ready
from tools.kube import Kube
from tools.on_cluster import choose_images, demo_manifest, offer_folders

NAME, PODS = "chat", 3
PREFIX_TOKENS = 112  # of each of `beginnings` in whole blocks, by the demo model's tokenizer
READY_SECONDS = 400.0
ENGINES = f"serving.atom.dev/deployment={NAME}"
PICKERS = "app.kubernetes.io/component=endpoint-picker"


@dataclass(frozen=True)
class PrefixAware:
    """Its pods, as the API server has them."""

    cluster: LiveCluster
    operator_log: Path

    def pods(self, selector: str = ENGINES) -> dict[str, dict[str, Any]]:
        text = self.cluster.kubectl("get", "pods", f"--selector={selector}", "-o", "json").stdout
        return {item["metadata"]["name"]: item for item in json.loads(text)["items"]}

    def ready(self, selector: str = ENGINES) -> dict[str, str]:
        """Name → address."""
        found = self.pods(selector)
        return {name: pod["status"]["podIP"] for name, pod in found.items() if is_ready(pod)}

    def answered(self) -> dict[str, float]:
        """How many requests each engine pod has answered."""
        return {name: self._finished(name) for name in self.pods()}

    def kill(self, pod: str) -> None:
        """It is gone at once, without a word to anyone."""
        self.cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")

    def _finished(self, pod: str) -> float:
        path = f"/api/v1/namespaces/{self.cluster.namespace}/pods/{pod}:8000/proxy/metrics"
        text = self.cluster.kubectl("get", "--raw", path).stdout
        found = re.findall(r"^atom:requests_finished_total.* (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


def is_ready(pod: dict[str, Any]) -> bool:
    found = pod.get("status", {}).get("conditions", ())
    return any((item["type"], item["status"]) == ("Ready", "True") for item in found)


@contextmanager
def prefix_aware(
    cluster: LiveCluster, folder: Path, environment: dict[str, str]
) -> Iterator[PrefixAware]:
    """Ready while the block runs; its pods are gone afterwards. `environment`: the operator's."""
    engine_image(cluster)  # or a skip with the reason
    chosen = target.resolve(os.environ)
    images = choose_images(chosen, os.environ)
    offer_folders(Kube(chosen, cluster.namespace), images)
    log = folder / "operator.log"
    found = PrefixAware(cluster, log)
    with operator(cluster, log, environment):
        neighbours.apply(cluster, _manifest(demo_manifest(images)))
        wait_ready(cluster, READY_SECONDS)
        yield found
        cluster.kubectl("delete", "atomd", NAME)
        cluster.wait("the end of its pods", lambda: not found.pods() and not found.pods(PICKERS))


def _manifest(demo: str) -> dict[str, Any]:
    """The demo's, small, and with one thread for each pod."""
    made: dict[str, Any] = yaml.safe_load(demo)
    made["metadata"]["name"] = NAME
    spec = made["spec"]
    spec["model"]["servedName"] = NAME
    spec["accelerator"]["memory"] = "2Gi"
    threads = {"name": "OMP_NUM_THREADS", "value": "1"}
    spec["engine"].update({"maxModelLen": 256, "maxNumSeqs": 4, "env": [threads]})
    gateway = {"prefixAware": True}
    return {**made, "spec": {**spec, "replicas": PODS, "gateway": gateway, "networkPolicy": {}}}
