"""Renders the engine pods' NetworkPolicy: clients, Prometheus and the operator alone. Pure.

Only incoming connections are limited. The API, /metrics and /health are one port, so a peer that
may scrape could also call the API; an API key tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.disaggregation.kv_transfer import transfer_port_rule
from atom_operator.children.endpoint_picker.cache_events import event_ports
from atom_operator.domain import EngineOptions, Identity, Manifest, ObjectKey, Plan
from atom_operator.integration_values import Integrations, NetworkAccess
from atom_operator.kinds import NETWORK_POLICY

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policy(plans: Sequence[Plan], access: NetworkAccess) -> Manifest:
    """Render the ingress to the pods of these plans, the first of which is the workload's; the
    kubelet's probes are not subject to policies."""
    rules = [_of_callers(access)]
    labels = naming.selector_labels(plans[0].identity.key.name)
    for plan in plans:
        rules += [rule for rule in _rules(plan, labels) if rule not in rules]
    return _policy(plans[0].identity, plans[0].identity.key.name, labels, rules)


def _rules(plan: Plan, labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield rules for the peers beside the callers; `labels` are those of the pods."""
    if plan.integrations.picker_program is not None:
        yield _of_picker(plan.identity.key, plan.engine, plan.integrations)
    if plan.integrations.frontend is not None:
        yield _of_peers(naming.frontend_labels(plan.identity.key.name))
    if plan.engine.serving.handover:
        yield _of_peers(labels)
    transfer = plan.engine.serving.transfer
    if transfer is not None and transfer.decode_name is not None:
        yield _of_peers(naming.frontend_labels(transfer.decode_name))
        yield {
            "from": [
                {"podSelector": {"matchLabels": naming.selector_labels(transfer.decode_name)}}
            ],
            "ports": [transfer_port_rule(plan.engine)],
        }
    if plan.engine.nodes > 1:  # ranks listen on ports that they choose
        yield {"from": [{"podSelector": {"matchLabels": labels}}]}


def frontend_policy(identity: Identity, access: NetworkAccess) -> Manifest:
    """Render the ingress to the frontend's pods: who may call the engines may call these."""
    labels = naming.frontend_labels(identity.key.name)
    return _policy(identity, naming.frontend_name(identity.key), labels, [_of_callers(access)])


def _policy(
    identity: Identity, name: str, labels: dict[str, str], rules: list[dict[str, Any]]
) -> Manifest:
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": naming.metadata(identity, name),
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _of_callers(access: NetworkAccess) -> dict[str, Any]:
    peers = [*access.clients, *access.prometheus, _operator(access)]
    return {
        "from": [dict(peer) for peer in peers],
        "ports": [{"port": constants.ENGINE_PORT_NAME, "protocol": "TCP"}],
    }


def _of_peers(labels: dict[str, str]) -> dict[str, Any]:
    """Admit peers: a frontend lets the pods compute; ending replicas hand their open answers
    over."""
    return {
        "from": [{"podSelector": {"matchLabels": labels}}],
        "ports": [{"port": constants.ENGINE_PORT_NAME, "protocol": "TCP"}],
    }


def _of_picker(key: ObjectKey, engine: EngineOptions, integrations: Integrations) -> dict[str, Any]:
    """Admit the endpoint picker that we run, which reads metrics, tokens and events."""
    labels = naming.picker_labels(key.name)
    ports = (constants.ENGINE_PORT_NAME, *event_ports(engine, integrations))
    return {
        "from": [{"podSelector": {"matchLabels": labels}}],
        "ports": [{"port": name, "protocol": "TCP"} for name in ports],
    }


def _operator(access: NetworkAccess) -> dict[str, Any]:
    """Return the peer of the operator's pods, in its own namespace if that is known."""
    names: dict[str, Any] = {}
    if access.operator_namespace is not None:
        names = {"matchLabels": {_NAMESPACE_LABEL: access.operator_namespace}}
    # As the chart labels them, whatever the release is called.
    labels = {constants.LABEL_COMPONENT: "operator", constants.LABEL_PART_OF: "atom-platform"}
    return {"namespaceSelector": names, "podSelector": {"matchLabels": labels}}
