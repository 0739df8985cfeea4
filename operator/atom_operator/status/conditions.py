"""Conditions: built by the roll-up, stamped with a transition time only when they flip. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import ConditionStatus

_MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold one condition before it has a time."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


def stamp(
    verdicts: Iterable[Verdict],
    previous: Iterable[Mapping[str, Any]],
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return the conditions for the status; the time of an unflipped one is kept from
    `previous`."""
    before = {item.get("type"): item for item in previous}
    return [_stamp_one(verdict, before.get(verdict.type), generation, now) for verdict in verdicts]


def _stamp_one(
    verdict: Verdict, before: Mapping[str, Any] | None, generation: int, now: datetime
) -> dict[str, Any]:
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before.get("status") == verdict.status:
        time = before.get("lastTransitionTime", time)
    return {
        "type": verdict.type.value,
        "status": verdict.status,
        "observedGeneration": generation,
        "lastTransitionTime": time,
        "reason": verdict.reason.value,
        "message": verdict.message[:_MESSAGE_LIMIT],
    }
