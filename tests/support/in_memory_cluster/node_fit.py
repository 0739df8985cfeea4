"""Whether a node is one for a pod, whatever is free on it: cordons, taints, selectors, affinity.

Written after the scheduler's own filters, and apart from the operator's plan/eligibility.py, which
has to come to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def node_objections(node: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> Iterator[str]:
    """The words of each filter that keeps the pod away."""
    spec: Mapping[str, Any] = node.get("spec") or {}
    tolerations = pod_spec.get("tolerations") or ()
    if spec.get("unschedulable") and not _tolerated(_UNSCHEDULABLE, tolerations):
        yield "node(s) were unschedulable"
    for taint in taints_of(node):
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, tolerations):
            value = taint.get("value", "")
            yield f"node(s) had untolerated taint {{{taint['key']}: {value}}}"
            break
    if not is_selected(node, pod_spec):
        yield "node(s) didn't match Pod's node affinity/selector"


def taints_of(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Its own, and those that the node controller puts on one that does not report."""
    found = list((node.get("spec") or {}).get("taints") or ())
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] != "True":
            name = "unreachable" if condition["status"] == "Unknown" else "not-ready"
            found.append({"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"})
    return found


def _tolerated(taint: Mapping[str, Any], tolerations: Any) -> bool:
    return any(
        item.get("effect") in (None, "", taint["effect"])
        and (
            (item.get("operator") == "Exists" and item.get("key") in (None, "", taint["key"]))
            or (
                item.get("key") == taint["key"]
                and item.get("operator", "Equal") == "Equal"
                and (item.get("value") or "") == (taint.get("value") or "")
            )
        )
        for item in tolerations
    )


def is_selected(node: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> bool:
    """Whether a node is one of the pod's node selector and required node affinity."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(matches_term(node, term) for term in required.get("nodeSelectorTerms") or ())


def matches_term(node: Mapping[str, Any], term: Mapping[str, Any]) -> bool:
    """Whether a node is one of a NodeSelectorTerm's; an empty term is nobody's."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    fields = {"metadata.name": str(node["metadata"]["name"])}
    expressions, in_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not in_fields:
        return False
    return all(_matches(labels, item) for item in expressions) and all(
        _matches(fields, item) for item in in_fields
    )


def _matches(labels: Mapping[str, str], item: Mapping[str, Any]) -> bool:
    value, values = labels.get(item["key"]), item.get("values") or ()
    match item["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                mine, asked = int(str(value)), int(values[0])
            except ValueError:
                return False
            return mine > asked if operator == "Gt" else mine < asked
    return False
