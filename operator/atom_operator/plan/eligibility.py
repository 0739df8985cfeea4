"""Whether a node may take a pod: readiness, cordon, taints, node selector, required affinity. Pure.

The scheduler decides; this says beforehand, and in words, what it will hold against a node. Pod
affinity and topology spread are not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_HOST = "kubernetes.io/hostname"
# Fields of an anti-affinity term that make it about other pods than all of one name.
_NARROWING = ("matchLabelKeys", "mismatchLabelKeys", "namespaceSelector", "namespaces")


def node_blockers(node: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Why no pod with `pod_spec` goes to `node`; empty when one may."""
    return tuple(_blockers(node, pod_spec))


def _blockers(node: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> Iterator[str]:
    spec: Mapping[str, Any] = node.get("spec") or {}
    if spec.get("unschedulable"):
        yield "cordoned"
    if not _is_ready(node):
        yield "not ready"
    tolerations = pod_spec.get("tolerations") or ()
    for taint in spec.get("taints") or ():
        if taint.get("effect") not in _BLOCKING_EFFECTS:
            continue
        # The cordon's and the node controller's own taints repeat what was said above.
        if str(taint.get("key", "")).startswith("node.kubernetes.io/"):
            continue
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            yield f"taint {taint['key']}{value}:{taint['effect']}"
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    for key, value in (pod_spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield f"nodeSelector wants {key}={value}"
    if not _affinity_matches(node, labels, pod_spec):
        yield "required node affinity (product or spec.template) does not match"


def _is_ready(node: Mapping[str, Any]) -> bool:
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready":
            return bool(condition.get("status") == "True")
    return False


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def _affinity_matches(
    node: Mapping[str, Any], labels: Mapping[str, str], pod_spec: Mapping[str, Any]
) -> bool:
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": str(node["metadata"]["name"])}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_matches(item, labels) for item in term.get("matchExpressions") or ())
        and all(_matches(item, fields) for item in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    actual = labels.get(str(expression.get("key")))
    operator, values = expression.get("operator"), list(expression.get("values") or ())
    if operator in ("Exists", "DoesNotExist"):
        return (actual is not None) is (operator == "Exists")
    if operator == "NotIn":
        return actual not in values
    if actual is None:
        return False
    if operator == "In":
        return actual in values
    if operator in ("Gt", "Lt") and actual.lstrip("-").isdigit():
        return int(actual) > int(values[0]) if operator == "Gt" else int(actual) < int(values[0])
    return False


def own_selectors_apart(
    pod_spec: Mapping[str, Any], labels: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    """The labels by which pods keep others of their own kind from their host, where they do."""
    affinity = _map(_map(pod_spec.get("affinity")).get("podAntiAffinity"))
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    found = []
    for term in terms if isinstance(terms, list) else ():
        selector = _map(_map(term).get("labelSelector"))
        wanted = _map(selector.get("matchLabels"))
        narrowed = any(term.get(name) for name in _NARROWING) or selector.get("matchExpressions")
        if term.get("topologyKey") == _HOST and wanted and not narrowed:
            found.append(wanted)
    return tuple(wanted for wanted in found if wanted.items() <= labels.items())


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
