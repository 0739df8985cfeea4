"""Those who call a model: by its route, by a frontend, by its Service, by the endpoint picker.

`misled` says who of them is promised a model that no pod which serves has. It reads objects as
they are in the cluster, and knows nothing of how the operator made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from atom_operator.constants import LABEL_ROLE, ROLE_WORKER
from atom_operator.domain import CONFIG_MAP, DEPLOYMENT, Manifest
from atom_operator.kinds import HTTP_ROUTE, INFERENCE_POOL
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.state import is_ready

_MODEL_HEADER = "X-Gateway-Model-Name"
_ENGINE = {"app.kubernetes.io/name": "atom-engine"}


def engines_that_serve(cluster: InMemoryCluster, name: str) -> list[Manifest]:
    """Engine pods of an AtomDeployment that are ready, by whatever they are found; of a group the
    leader, which answers."""
    wanted = {**_ENGINE, "app.kubernetes.io/instance": name}.items()
    return [
        pod
        for pod in cluster.pods
        if is_ready(pod) and wanted <= (pod["metadata"].get("labels") or {}).items()
        if (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) != ROLE_WORKER
    ]


def option(pod_spec: Manifest, flag: str, container: str = "engine") -> str | None:
    """What a container's command line says behind a flag."""
    (found,) = [item for item in pod_spec["containers"] if item["name"] == container]
    args = found.get("args") or []
    return str(args[args.index(flag) + 1]) if flag in args else None


def model_names(route: Manifest) -> list[str]:
    """The names by which a route takes requests for a model."""
    return [
        header["value"]
        for rule in route["spec"]["rules"]
        for match in rule.get("matches") or ()
        for header in match.get("headers") or ()
        if header["name"] == _MODEL_HEADER
    ]


def misled(cluster: InMemoryCluster, name: str = "chat") -> list[str]:
    """Whoever asks for what no pod serves, while some pod does serve."""
    pods = engines_that_serve(cluster, name)
    return [*_misled(cluster, name, [pod["spec"] for pod in pods])] if pods else []


def _misled(cluster: InMemoryCluster, name: str, pods: list[Manifest]) -> Iterator[str]:
    served = {option(pod, "--served-model-name") for pod in pods}
    route = cluster.api.objects.get((HTTP_ROUTE, "default", name))
    named = model_names(route) if route is not None else []
    if named and not {*named} <= served:
        yield f"the route takes requests for {named}, pods serve {served}"
    if named and not served <= {*named}:
        yield f"pods serve {served}, the route takes requests for {named} alone"
    front = cluster.api.objects.get((DEPLOYMENT, "default", f"{name}-frontend"))
    if front is not None and not any(_fits(front, pod) for pod in pods):
        yield f"frontends are made as {_shown(front['spec']['template']['spec'], 'frontend')}"
    pool = cluster.api.objects.get((INFERENCE_POOL, "default", name))
    config = cluster.api.objects.get((CONFIG_MAP, "default", f"{name}-picker"))
    if pool is not None and config is not None:
        yield from _misled_picker(yaml.safe_load(config["data"]["picker.yaml"]), pods)


def _fits(front: Manifest, engine: Manifest) -> bool:
    """Whether a frontend's pods are of the same image, names and lengths as an engine's pod."""
    spec = front["spec"]["template"]["spec"]
    return _shown(spec, "frontend") == _shown(engine, "engine")


def _shown(spec: Manifest, container: str) -> tuple[Any, ...]:
    (found,) = [item for item in spec["containers"] if item["name"] == container]
    flags = ("--model", "--served-model-name", "--max-model-len", "--max-loras")
    return (found["image"], *(option(spec, flag, container) for flag in flags))


def _misled_picker(config: Manifest, pods: list[Manifest]) -> Iterator[str]:
    """Where the picker reads events, some pod has to send them, of such blocks and names."""
    plugins = {item["type"]: item.get("parameters") or {} for item in config["plugins"]}
    tokens, events = plugins.get("token-producer"), plugins.get("precise-prefix-cache-producer")
    if tokens is None or events is None:
        return
    sent = [json.loads(found) for pod in pods if (found := option(pod, "--kv-events-config"))]
    topics = {item["topic"].rpartition("@")[2] for item in sent}
    if tokens["modelName"] not in topics:
        yield f"the picker asks for {tokens['modelName']}, pods tell of {topics}"
    blocks = {option(pod, "--block-size") or "16" for pod in pods}
    if str(events["tokenProcessorConfig"]["blockSize"]) not in blocks:
        yield f"the picker counts in blocks of {events['tokenProcessorConfig']}, pods in {blocks}"
