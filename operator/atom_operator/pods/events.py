"""What Events say where no status does: whose pods the API server refuses. Pure.

Neither a Job nor a StatefulSet (the pods of a group are of several) has a condition for a pod that
a quota, a LimitRange or an admission webhook keeps from being made. Called by jobs and observe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from atom_operator.pods.pod_state import time_of

_REFUSED = "FailedCreate"
_COMBINED = "(combined from similar events): "
# What kubelets and controllers of nodes write about a pod that they end.
_ENDED_BY = ("Evicted", "Preempting", "NodeShutdown", "TaintManagerEviction", "NodeNotReady")


def newest_refusal(
    events: Iterable[Mapping[str, Any]], after: datetime | None = None
) -> str | None:
    """The words of the last refusal; None where a pod was made `after` it."""
    found = [(event_time(item), item) for item in events if item.get("reason") == _REFUSED]
    told = [(time, item) for time, item in found if time is not None]
    if not told:
        return None
    time, newest = max(told, key=lambda each: each[0])
    if after is not None and time < after:
        return None
    words = str(newest.get("message") or "").removeprefix(_COMBINED)
    return words.removeprefix("Error creating: ").strip()


def newest_warning(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Reason and words of the last warning about a pod that says who ended it."""
    found = [(event_time(item), item) for item in events if item.get("reason") in _ENDED_BY]
    told = [(time, item) for time, item in found if time is not None]
    if not told:
        return None
    newest = max(told, key=lambda each: each[0])[1]
    return f"{newest['reason']}: {str(newest.get('message') or '').strip()}"


def event_time(event: Mapping[str, Any]) -> datetime | None:
    """When an Event was last seen, of either form of the API."""
    series = event.get("series") or {}
    for text in (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    ):
        found = time_of(text) if text else None
        if found is not None:
            return found
    return None
