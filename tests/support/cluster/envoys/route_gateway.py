"""A Gateway whose data plane is a real Envoy in the cluster's network.

It carries out HTTPRoutes as the API server has them, in the order that the Gateway API gives to
matches (the longest path, then the most headers, then the older route), and answers their parents
as a controller would. Backends are Services.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cluster.envoys.node_envoy import envoy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.server.envoy_process import written

_PORT = 10080
_TYPES = "type.googleapis.com/envoy.extensions.filters"


@contextmanager
def envoy_gateway(
    cluster: LiveCluster, routes: Sequence[Mapping[str, Any]], folder: Path
) -> Iterator[str]:
    """Yield the address at which requests come in."""
    with envoy(written(_document(cluster, routes), folder)) as address:
        yield f"http://{address}:{_PORT}"


def take_up(cluster: LiveCluster, route: Mapping[str, Any]) -> None:
    """Report of every parent that the route is carried out."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Accepted", "ResolvedRefs")
    ]
    parents = [
        {"parentRef": parent, "controllerName": "example.test/envoy", "conditions": conditions}
        for parent in route["spec"]["parentRefs"]
    ]
    patch = json.dumps({"status": {"parents": parents}})
    name = route["metadata"]["name"]
    cluster.kubectl(
        "patch", "httproute", name, "--subresource=status", "--type=merge", f"--patch={patch}"
    )


def _document(cluster: LiveCluster, routes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = sorted(
        (
            (-len(match["path"]["value"]), -len(match.get("headers") or ()), age, match, rule)
            for age, route in enumerate(_oldest_first(routes))
            for rule in route["spec"]["rules"]
            for match in rule["matches"]
        ),
        key=lambda item: item[:3],
    )
    services = {backend["name"] for *_, rule in found for backend in rule["backendRefs"]}
    return {
        "static_resources": {
            "listeners": [_listener([_route(match, rule) for *_, match, rule in found])],
            "clusters": [_cluster(cluster, name) for name in sorted(services)],
        }
    }


def _oldest_first(routes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    metadata = [(route["metadata"], route) for route in routes]
    metadata.sort(key=lambda item: (item[0]["creationTimestamp"], item[0]["name"]))
    return [route for _, route in metadata]


def _route(match: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    (backend,) = rule["backendRefs"]
    headers = [
        {"name": item["name"], "string_match": {"exact": item["value"]}}
        for item in match.get("headers") or ()
    ]
    action: dict[str, Any] = {"cluster": backend["name"], "timeout": rule["timeouts"]["request"]}
    for item in rule.get("filters") or ():
        action["prefix_rewrite"] = item["urlRewrite"]["path"]["replacePrefixMatch"]
    prefix = {"path_separated_prefix": match["path"]["value"]}
    return {"match": {**prefix, "headers": headers}, "route": action}


def _listener(routes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    host = {"name": "gate", "domains": ["*"], "routes": list(routes)}
    router = {"@type": f"{_TYPES}.http.router.v3.Router"}
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gate",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    name = "envoy.filters.network.http_connection_manager"
    return {
        "name": "gate",
        "address": _address("0.0.0.0", _PORT),
        "filter_chains": [{"filters": [{"name": name, "typed_config": manager}]}],
    }


def _cluster(cluster: LiveCluster, service: str) -> dict[str, Any]:
    spec = (cluster.get("service", service) or {})["spec"]
    (port,) = (item["port"] for item in spec["ports"] if item["name"] == "http")
    endpoint = {"endpoint": {"address": _address(spec["clusterIP"], port)}}
    assignment = {"cluster_name": service, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": service, "type": "STATIC", "load_assignment": assignment}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
