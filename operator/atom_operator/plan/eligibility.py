"""Whether a node may take a pod: readiness, cordon, taints, node selector, required affinity. Pure.

The scheduler decides; this predicts its objections to a node, in words. plan/devices/other_pods.py
predicts those that other pods there cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atom_operator.plan.node_labels import label_values
from atom_operator.plan.placement import Placement, Requirement, Toleration

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_HOST = "kubernetes.io/hostname"
# Fields of an anti-affinity term that make it about other pods than all of one name.
_NARROWING = ("matchLabelKeys", "mismatchLabelKeys", "namespaceSelector", "namespaces")
_DEVICE_ID = "gpu.device-id"
_NAMED_REQUIREMENTS = 3


def node_blockers(node: Mapping[str, Any], placement: Placement) -> tuple[str, ...]:
    """Return why no pod with this placement goes to `node`; empty when one may."""
    return tuple(_blockers(node, placement))


def volume_blockers(
    node: Mapping[str, Any], volumes: Iterable[tuple[str, Placement]]
) -> tuple[str, ...]:
    """Name the claims of a pod whose volumes cannot be attached to `node`, by their placement."""
    name, labels = str(node["metadata"]["name"]), node["metadata"].get("labels") or {}
    return tuple(
        f"the volume of claim {claim} is not for it"
        for claim, place in volumes
        if any(_unmet_affinity(name, labels, place))
    )


def _blockers(node: Mapping[str, Any], placement: Placement) -> Iterator[str]:
    spec: Mapping[str, Any] = node.get("spec") or {}
    name = str(node["metadata"]["name"])
    cordoned = bool(spec.get("unschedulable")) and not tolerates(placement, _CORDON)
    ready = is_ready(node)
    if cordoned:
        yield "cordoned"
    if not ready:
        yield "not ready"
    if placement.node_name not in (None, name):
        yield f"nodeName wants {placement.node_name}"
    for taint in spec.get("taints") or ():
        if taint.get("effect") not in _BLOCKING_EFFECTS:
            continue
        # The cordon's taint and those of a node that is not ready repeat earlier messages. All
        # others of the node controller's (pressure, network, out of service) are reported
        # separately.
        key = taint.get("key")
        if (cordoned and key == _CORDON["key"]) or (not ready and key in _NOT_READY):
            continue
        if not tolerates(placement, taint):
            yield taint_text(taint)
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    for key, value in placement.node_selector:
        if labels.get(key) != value:
            yield f"nodeSelector wants {key}={value}"
    yield from _unmet_affinity(name, labels, placement)


def tolerates(placement: Placement, taint: Mapping[str, Any]) -> bool:
    """Return whether pods with this placement bear a taint."""
    return any(_tolerates(toleration, taint) for toleration in placement.tolerations)


def taint_text(taint: Mapping[str, Any]) -> str:
    """Name a taint as kubectl does."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"taint {taint['key']}{value}:{taint['effect']}"


def is_ready(node: Mapping[str, Any]) -> bool:
    return bool(ready_condition(node).get("status") == "True")


def ready_condition(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node's condition Ready; empty if it has none."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == "Ready"), {})


def _tolerates(toleration: Toleration, taint: Mapping[str, Any]) -> bool:
    if toleration.effect and toleration.effect != taint.get("effect"):
        return False
    if toleration.key and toleration.key != taint.get("key"):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == (taint.get("value") or "")


def _unmet_affinity(name: str, labels: Mapping[str, str], placement: Placement) -> Iterator[str]:
    """Yield in one sentence the requirements that the node fails in every term of the required
    affinity."""
    if placement.terms is None:
        return
    failing: list[Requirement] = []
    for term in placement.terms:
        unmet = None if term.is_empty else term.failing(name, labels)
        if unmet is None and not term.is_empty:
            return
        failing += [unmet] if unmet is not None else []
    devices = [item for item in failing if _DEVICE_ID in item.key]
    others = [str(item) for item in failing if _DEVICE_ID not in item.key]
    if devices:
        found = ", ".join(label_values(labels, "device-id"))
        wanted = ", ".join(dict.fromkeys(id for item in devices for id in item.values))
        yield f"its device id is {found or 'not labelled'}, the product's are {wanted}"
    elif others:
        more = "" if len(others) <= _NAMED_REQUIREMENTS else " …"
        wanted = " or ".join(others[:_NAMED_REQUIREMENTS])
        yield f"required node affinity of spec.template wants {wanted}{more}"
    else:
        yield "required node affinity of spec.template names no node: its terms are empty"


def own_selectors_apart(
    pod_spec: Mapping[str, Any], labels: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    """Return the labels by which pods keep others of their own kind from their host, if they do."""
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
