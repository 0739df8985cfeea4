"""Placement of a pod spec, as typed values: node, selector, affinity, tolerations. Pure.

Read once from a finished pod spec, after the merge of a user's spec.template: a value that the
scheduler could not read either matches no node, and is never an error. Called by plan/inventory.py
and by plan/eligibility.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that pods bear; empty fields match every key and effect."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """Hold one requirement on a label or field of a node."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match, as the scheduler judges; an unknown operator matches
        nothing."""
        actual = labels.get(self.key)
        match self.operator:
            case "In":
                return actual in self.values
            case "NotIn":
                return actual not in self.values
            case "Exists":
                return actual is not None
            case "DoesNotExist":
                return actual is None
            case "Gt" | "Lt":
                return _compares(actual, self.operator, self.values)
        return False

    def __str__(self) -> str:
        values = f" {', '.join(self.values)}" if self.values else ""
        return f"{self.key} {self.operator}{values}"


@dataclass(frozen=True, slots=True)
class Term:
    """Requirements that hold together; one without any matches no node."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def failing(self, name: str, labels: Mapping[str, str]) -> Requirement | None:
        """Return the first requirement that a node does not meet, or None."""
        of_node = {"metadata.name": name}
        for item in self.labels:
            if not item.matches(labels):
                return item
        return next((item for item in self.fields if not item.matches(of_node)), None)

    @property
    def is_empty(self) -> bool:
        return not self.labels and not self.fields


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything that may keep a node from taking a pod. `terms` None: no required affinity."""

    node_name: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


def placement_of(pod_spec: Mapping[str, Any]) -> Placement:
    """Parse the placement of a pod spec; an unreadable part is left out, or matches no node."""
    required = _map(_map(_map(pod_spec, "affinity"), "nodeAffinity"), _REQUIRED)
    return Placement(
        node_name=_text(pod_spec.get("nodeName")) or None,
        node_selector=tuple(
            (str(key), _text(value)) for key, value in _map(pod_spec, "nodeSelector").items()
        ),
        terms=tuple(map(_term, _maps(required, "nodeSelectorTerms"))) if required else None,
        tolerations=tuple(map(_toleration, _maps(pod_spec, "tolerations"))),
    )


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _term(term: Mapping[str, Any]) -> Term:
    labels, fields = _maps(term, "matchExpressions"), _maps(term, "matchFields")
    return Term(tuple(map(_requirement, labels)), tuple(map(_requirement, fields)))


def requirements_of(items: Iterable[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    """Read the matchExpressions of a selector of labels."""
    return tuple(map(_requirement, items))


def _requirement(item: Mapping[str, Any]) -> Requirement:
    values = item.get("values")
    texts = tuple(map(_text, values)) if isinstance(values, list) else ()
    return Requirement(_text(item.get("key")), _text(item.get("operator")), texts)


def _toleration(item: Mapping[str, Any]) -> Toleration:
    operator = _text(item.get("operator")) or "Equal"
    value, effect = _text(item.get("value")), _text(item.get("effect"))
    return Toleration(_text(item.get("key")), operator, value, effect)


def _compares(actual: str | None, operator: str, values: tuple[str, ...]) -> bool:
    left, right = _whole(actual), _whole(values[0] if len(values) == 1 else None)
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right


def _whole(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _map(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _maps(value: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    found = value.get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def placement_of_volume(required: Mapping[str, Any]) -> Placement:
    """Return the nodes of a PersistentVolume, by spec.nodeAffinity.required, as of pods that want
    them."""
    affinity = {_REQUIRED: required}
    return placement_of({"affinity": {"nodeAffinity": affinity}})
