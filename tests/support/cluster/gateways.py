"""Gateways, and what their controllers say of our routes."""

from __future__ import annotations

from typing import Any

from atom_operator.domain import Manifest
from atom_operator.kinds import HTTP_ROUTE
from tests.support.operator.fake_cluster import FakeCluster


def a_gateway(name: str = "gate", namespace: str = "default") -> Manifest:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": "any"},
    }


def says(kind: str, status: str, reason: str, message: str, **more: Any) -> dict[str, Any]:
    """A condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message, **more}


def take_up_route(
    cluster: FakeCluster,
    name: str = "chat",
    *conditions: dict[str, Any],
    namespace: str = "default",
) -> None:
    """A controller reports on every Gateway of a route; by default it is content."""
    route = cluster.find(HTTP_ROUTE, name, namespace)
    content = (says("Accepted", "True", "Accepted", ""), says("ResolvedRefs", "True", "Ok", ""))
    route["status"] = {
        "parents": [
            {
                "parentRef": parent,
                "controllerName": "example.test/gateway",
                "conditions": [*(conditions or content)],
            }
            for parent in route["spec"]["parentRefs"]
        ]
    }
    cluster.touch(route)
