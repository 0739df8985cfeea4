"""Other controllers' verdicts on the objects that we made for them. Pure.

Each kind has its own place for them: conditions of the object, or of each Gateway or Prometheus
that adopts it. A verdict about an older version of the object does not count. Called by
integrations_ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from atom_operator.constants import FRONTEND_COMPONENT, LABEL_COMPONENT, Reason
from atom_operator.domain import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ChildKey,
    ConditionStatus,
    Manifest,
    runs_engines,
)
from atom_operator.domain.objects import is_of_newest_spec
from atom_operator.kinds import (
    AUTOSCALER,
    HTTP_ROUTE,
    INFERENCE_POOL,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SCALED_OBJECT,
    Kind,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Locate a kind's verdicts, with the conditions that should be True."""

    types: tuple[str, ...]
    reason: Reason
    under: Literal["", "parents", "bindings"] = ""
    only_reasons: frozenset[str] = frozenset()  # of False; empty: every one counts
    for_callers: bool = False  # whether requests come by this object


_PLACES: Mapping[Kind, _Place] = {
    AUTOSCALER: _Place(("AbleToScale", "ScalingActive"), Reason.AUTOSCALER_NOT_READY),
    SCALED_OBJECT: _Place(("Ready",), Reason.AUTOSCALER_NOT_READY),
    HTTP_ROUTE: _Place(
        ("Accepted", "ResolvedRefs"), Reason.ROUTE_NOT_READY, "parents", for_callers=True
    ),
    INFERENCE_POOL: _Place(
        ("Accepted", "ResolvedRefs"), Reason.ROUTE_NOT_READY, "parents", for_callers=True
    ),
    DEPLOYMENT: _Place(("Available",), Reason.PICKER_NOT_READY),
    POD_MONITOR: _Place(("Accepted",), Reason.NOT_TAKEN_UP, "bindings"),
    PROMETHEUS_RULE: _Place(("Accepted",), Reason.NOT_TAKEN_UP, "bindings"),
    # A budget that allows no eviction now does its work; one that cannot judge is broken.
    DISRUPTION_BUDGET: _Place(
        ("DisruptionAllowed",), Reason.NOT_TAKEN_UP, only_reasons=frozenset({"SyncFailed"})
    ),
}
_PENDING = "Pending"  # of a CRD's defaults before any controller has acted


@dataclass(frozen=True, slots=True)
class ForeignVerdict:
    """Hold one condition of one object, in its controller's words."""

    child: ChildKey
    status: ConditionStatus
    reason: Reason
    words: str
    for_callers: bool


def verdicts_of_others(children: Mapping[ChildKey, Manifest]) -> Iterator[ForeignVerdict]:
    """Yield the verdicts that count."""
    for child, manifest in children.items():
        place = _PLACES.get(child.kind)
        if place is not None and not runs_engines(child, manifest):
            yield from _of_child(child, manifest, _of_component(manifest, place))


def _of_component(manifest: Manifest, place: _Place) -> _Place:
    labels = manifest["metadata"].get("labels") or {}
    if labels.get(LABEL_COMPONENT) == FRONTEND_COMPONENT:
        return replace(place, reason=Reason.FRONTEND_NOT_READY)
    return place


def unanswered_gateways(route: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the namespace and name of every Gateway of an HTTPRoute of which no controller says
    anything."""
    namespace = route["metadata"]["namespace"]
    told = {
        _gateway(item.get("parentRef") or {}, namespace)
        for item in _items((route.get("status") or {}).get("parents"))
    }
    asked = (_gateway(item, namespace) for item in route["spec"].get("parentRefs") or ())
    return tuple(dict.fromkeys(item for item in asked if item not in told))


def _gateway(parent: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    return str(parent.get("namespace") or namespace), str(parent.get("name"))


def _of_child(child: ChildKey, manifest: Manifest, place: _Place) -> Iterator[ForeignVerdict]:
    status: Mapping[str, Any] = manifest.get("status") or {}
    holders = _items(status.get(place.under)) if place.under else [status]
    if child.kind == DEPLOYMENT and (refused := _refused_pods(manifest)) is not None:
        # Its other conditions are only consequences.
        yield _verdict(child, {**refused, "status": "False"}, place, "")
        return
    for holder in holders:
        where = _where(holder, manifest) if place.under else ""
        for item in _items(holder.get("conditions")):
            if item.get("type") not in place.types or item.get("reason") == _PENDING:
                continue
            if item.get("status") == "False" and not _counts(item, place):
                continue
            if not is_of_newest_spec(item, manifest):
                continue
            yield _verdict(child, item, place, where)


def _refused_pods(manifest: Manifest) -> Mapping[str, Any] | None:
    """Return the condition of a Deployment that gets no pods: a quota, a LimitRange, a policy."""
    for item in _items((manifest.get("status") or {}).get("conditions")):
        if item.get("type") == "ReplicaFailure" and item.get("status") == "True":
            return item
    return None


def _counts(item: Mapping[str, Any], place: _Place) -> bool:
    return not place.only_reasons or item.get("reason") in place.only_reasons


def _verdict(child: ChildKey, item: Mapping[str, Any], place: _Place, where: str) -> ForeignVerdict:
    status: ConditionStatus = "Unknown"
    if item.get("status") in ("True", "False"):
        status = item["status"]
    said = "True" if item.get("type") == "ReplicaFailure" else status  # which is bad news
    words = f"{item.get('type')}={said}, {item.get('reason')}: {item.get('message')}"
    text = f"{child.kind.kind} {child.name}{where} says {words}"
    return ForeignVerdict(child, status, place.reason, text, place.for_callers)


def _where(holder: Mapping[str, Any], manifest: Manifest) -> str:
    parent = holder.get("parentRef")
    if isinstance(parent, Mapping):
        gateway = "/".join(_gateway(parent, manifest["metadata"]["namespace"]))
        section = f", listener {parent['sectionName']}," if parent.get("sectionName") else ""
        return f" at {parent.get('kind') or 'Gateway'} {gateway}{section}"
    return f" at {holder.get('resource')} {holder.get('namespace')}/{holder.get('name')}"


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
