"""Kubernetes Events for a status change: one per condition that flipped. Pure.

Conditions hold the state, events the moments. The name of an Event is made from its content, so
that a repeated flip counts up one Event instead of making another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from atom_operator import constants
from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import EVENT, Manifest, Owner

_MESSAGE_LIMIT = 1024  # of the API
_BAD = {
    (ConditionType.ACCEPTED, "False"),
    (ConditionType.CAPACITY_FITS, "False"),
    (ConditionType.SCHEDULED, "False"),
    (ConditionType.CAPACITY_MATCHED, "False"),
    (ConditionType.AVAILABLE, "False"),
    (ConditionType.DEGRADED, "True"),
    (ConditionType.CAPACITY_LIMITED, "True"),
    (ConditionType.INTEGRATIONS_READY, "False"),
    (ConditionType.DEVICES_HEALTHY, "False"),
}
# Of these a turn is also another reason, or other words before the first semicolon.
_TOLD_IN_WORDS = (ConditionType.CANARY_PROGRESSING, ConditionType.DEVICES_HEALTHY)
_BAD_REASONS = (Reason.CANARY_UNDONE, Reason.CANARY_STALLED)
_REPEATS = (
    ConditionType.RECONCILING,
    ConditionType.STALLED,
    (ConditionType.READY, "False"),
)
# At first sight everything flips; these are more informative than the object's creation.
_WORTH_AT_FIRST = _BAD - {(ConditionType.AVAILABLE, "False")}


@dataclass(frozen=True, slots=True)
class Happening:
    """Describe one flip of one condition."""

    severity: Literal["Normal", "Warning"]
    condition: str
    status: str
    reason: str
    message: str


def happenings(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> tuple[Happening, ...]:
    """Return the flips from `before` to `after`, in the conditions' order.

    Unknown is no news, and neither are effects of another condition's flip: Ready=False,
    Reconciling and Stalled.
    """
    known = {item["type"]: item for item in before}
    found: list[Happening] = []
    for item in after:
        kind, status = ConditionType(item["type"]), str(item["status"])
        previous = known.get(kind)
        if previous is not None and _is_same(kind, previous, item):
            continue
        if status == "Unknown" or kind in _REPEATS or (kind, status) in _REPEATS:
            continue
        if previous is None and (kind, status) not in _WORTH_AT_FIRST:
            continue
        is_bad = (kind, status) in _BAD or item["reason"] in _BAD_REASONS
        severity: Literal["Normal", "Warning"] = "Warning" if is_bad else "Normal"
        message = f"{kind.value}={status}: {item['message']}"
        found.append(Happening(severity, kind.value, status, item["reason"], message))
    return tuple(found)


def given_back(leader: str, placed: int, lacking: int) -> Happening:
    """Report a half-placed group that gives its pods back to another one."""
    message = (
        f"group {leader} had {placed} of its {placed + lacking} nodes, and another group needs "
        "them: its pods are evicted, and are created again. Add nodes, or ask for fewer replicas"
    )
    reason = Reason.GROUP_GAVE_BACK.value
    return Happening("Normal", ConditionType.SCHEDULED.value, "False", reason, message)


def _is_same(kind: ConditionType, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a condition is unchanged for its readers."""
    if before["status"] != now["status"] or kind not in _TOLD_IN_WORDS:
        return bool(before["status"] == now["status"])
    said, says = (each["message"].partition(";")[0] for each in (before, now))
    return bool(before["reason"] == now["reason"] and said == says)


def event_name(owner: Owner, happening: Happening) -> str:
    """Name the Event of a flip: equal for the same flip of the same object."""
    parts = (owner.uid, happening.condition, happening.status, happening.reason)
    return f"{owner.key.name}.{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}"


def event(
    owner: Owner, happening: Happening, existing: Mapping[str, Any] | None, now: datetime
) -> Manifest:
    """Return the Event to write: a new one, or `existing` counted up."""
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = existing or {}
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": event_name(owner, happening),
            "namespace": owner.key.namespace,
            "labels": {constants.LABEL_DEPLOYMENT: owner.key.name},
        },
        "involvedObject": {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        },
        "type": happening.severity,
        "reason": happening.reason,
        "message": happening.message[:_MESSAGE_LIMIT],
        "source": {"component": constants.FIELD_MANAGER},
        "reportingComponent": constants.FIELD_MANAGER,
        "reportingInstance": constants.FIELD_MANAGER,
        "firstTimestamp": before.get("firstTimestamp") or time,
        "lastTimestamp": time,
        "count": int(before.get("count") or 0) + 1,
    }
