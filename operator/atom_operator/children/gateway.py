"""Gateway API: the InferencePool of the pods, and an HTTPRoute to it or to the Service. Pure.

InferencePool is gateway-api-inference-extension's v1: its endpoint picker reads the pods' metrics
and chooses one for every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import Identity, Manifest, Plan, RevisionInForce
from atom_operator.integration_values import EndpointPicker, HttpRoute, Integrations
from atom_operator.kinds import HTTP_ROUTE, INFERENCE_POOL

# A long answer streams for minutes; a route's usual 15 seconds would cut it.
_REQUEST_TIMEOUT = "0s"
_API = "/v1"
# What body-based routing of the Gateway API Inference Extension writes a request's model into.
MODEL_HEADER = "X-Gateway-Model-Name"


def inference_pool(
    identity: Identity, selected: Mapping[str, str], picker: EndpointPicker
) -> Manifest:
    """Render the pods that an endpoint picker chooses from; only fields that v1 had from its first
    release on, since an API server refuses an object with one that it does not know. selected: the
    labels of the pods."""
    return {
        "apiVersion": INFERENCE_POOL.api_version,
        "kind": INFERENCE_POOL.kind,
        "metadata": naming.metadata(identity, identity.key.name),
        "spec": {
            "selector": {"matchLabels": dict(selected)},
            "targetPorts": [{"number": constants.ENGINE_PORT}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": picker.name or naming.picker_name(identity.key),
                "port": {"number": picker.port},
                "failureMode": picker.failure_mode,
            },
        },
    }


def http_route(serving: RevisionInForce, route: HttpRoute) -> Manifest:
    """Render the route from the Gateways to the pool, or to the Service if there is no pool, with
    every name by which pods serve the model now."""
    plan = serving.plan
    spec: dict[str, Any] = {
        "parentRefs": [dict(parent) for parent in route.parents],
        "rules": list(_rules(serving, route)),
    }
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.kind,
        "metadata": naming.metadata(plan.identity, plan.identity.key.name),
        "spec": spec,
    }


def _rules(serving: RevisionInForce, route: HttpRoute) -> Iterator[dict[str, Any]]:
    """Yield the rules that separate the models of one Gateway: a path of its own, or the model's
    name. A Gateway takes the longest path, then the most headers, so rules that name a model come
    first."""
    plan = serving.plan
    if "Path" in route.matches:
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": _API}}
        yield {
            **_rule(
                plan, [_below(f"/{plan.identity.key.namespace}/{plan.identity.key.name}{_API}")]
            ),
            "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        }
    if "Header" in route.matches:
        yield _rule(plan, [_named(name) for name in serving.served_names])
    if "All" in route.matches:
        yield _rule(plan, [_below(_API)])


def _below(path: str) -> dict[str, Any]:
    return {"path": {"type": "PathPrefix", "value": path}}


def _named(name: str) -> dict[str, Any]:
    return {**_below(_API), "headers": [{"name": MODEL_HEADER, "value": name}]}


def _rule(plan: Plan, matches: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "matches": matches,
        "timeouts": {"request": _REQUEST_TIMEOUT},
        "backendRefs": list(_backends(plan)),
    }


def _backends(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the backends of requests, with weights if there is a canary: zero while it only has to
    become known to the Gateway."""
    canary = plan.canary
    share = canary.state.weight if canary else 0
    if canary is None or not (share or canary.is_there):
        yield _backend(plan.integrations, plan.identity.key.name)
        return
    yield {**_backend(plan.integrations, plan.identity.key.name), "weight": 100 - share}
    yield {**_backend(plan.integrations, canary.name), "weight": share}


def _backend(integrations: Integrations, name: str) -> dict[str, Any]:
    if integrations.endpoint_picker is None:
        return {"group": "", "kind": "Service", "name": name, "port": constants.ENGINE_PORT}
    return {"group": INFERENCE_POOL.group, "kind": INFERENCE_POOL.kind, "name": name}
