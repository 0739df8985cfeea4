"""Looks at a cluster and says what is wrong with it; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from devcluster import dns
from devcluster.api import Api, ApiError
from devcluster.settings import Settings


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    pid_inside: int | None
    ready: bool
    restarts: int
    last_exit: str


@dataclass(frozen=True, slots=True)
class Health:
    components: tuple[Component, ...] = ()
    api_ready: bool = False
    ready_nodes: tuple[str, ...] = ()
    dns_ready: bool = False
    notes: tuple[str, ...] = field(default=())

    def problems(self, node_name: str, of: Collection[str] | None = None) -> list[str]:
        """Return what is missing for a working cluster, most basic first; empty when it works.
        `of`: only these components.
        """
        found = [
            f"{c.name} is not ready{f' (last ended with {c.last_exit})' if c.last_exit else ''}"
            for c in self.components
            if not c.ready and (of is None or c.name in of)
        ]
        if not self.components:
            found.append("no component has started")
        if not self.api_ready:
            found.append("the API server is not ready")
        elif node_name not in self.ready_nodes:
            found.append(f"node {node_name} is not Ready")
        elif not self.dns_ready:
            found.append("cluster DNS is not available")
        return found


def api_of(settings: Settings, url: str) -> Api:
    return Api(url, settings.pki, timeout_seconds=5)


def components(settings: Settings) -> tuple[Component, ...]:
    """Return what the supervisor wrote last."""
    try:
        report = json.loads((settings.state / "components.json").read_text())
    except (OSError, ValueError):
        return ()
    return tuple(
        Component(name, c["pid"], c["ready"], c["restarts"], c["last_exit"])
        for name, c in report.items()
    )


def observe(settings: Settings, api: Api) -> Health:
    seen = components(settings)
    try:
        api.get("/readyz")
        nodes = tuple(
            node["metadata"]["name"]
            for node in api.get("/api/v1/nodes")["items"]
            if is_true(node, "Ready")
        )
        deployment = api.find(dns.DEPLOYMENT_PATH)
    except ApiError as error:
        return Health(seen, notes=(str(error),))
    return Health(seen, True, nodes, deployment is not None and is_available(deployment))


def is_true(thing: dict[str, Any], condition: str) -> bool:
    # A CustomResourceDefinition has null before it has any.
    conditions = thing.get("status", {}).get("conditions") or []
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


def is_available(deployment: dict[str, Any]) -> bool:
    """Return whether all its replicas are of the present template, and serve."""
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return bool(seen and counts == [wanted] * 3)
