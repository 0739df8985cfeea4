"""Refusals that only Events report: pods that the API server does not admit. Pure.

Neither a Job nor a StatefulSet (the pods of a group are of several) has a condition for a pod that
a quota, a LimitRange or an admission webhook refuses, and no pod has one for missing volumes.
Called by jobs, observe and their helpers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atom_operator.pods.pod_state import time_of

_REFUSED = "FailedCreate"
_UNCLAIMED = "FailedResourceClaimCreation"
_CLAIM_OF_POD = re.compile(r"^PodResourceClaim \S+: (create ResourceClaim \S*: )?")
_DRAWN_CLAIM = re.compile(r' "[^"]+" is forbidden')
_MESSAGE_LIMIT = 300
_COMBINED = "(combined from similar events): "
# What kubelets and controllers of nodes write about a pod that they end.
_ENDED_BY = ("Evicted", "Preempting", "NodeShutdown", "TaintManagerEviction", "NodeNotReady")
# What a kubelet writes about a pod that it does not take; of a resource it is OutOf and its name.
_NOT_TAKEN = ("UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "TopologyAffinityError")
_OUT_OF = "OutOf"


@dataclass(frozen=True, slots=True)
class Told:
    """Words of an Event, with its reason where that says more, and when it was last seen."""

    words: str
    at: datetime


def newest_refusal(
    events: Iterable[Mapping[str, Any]], after: datetime | None = None
) -> Told | None:
    """Return the last refusal; None if a pod was made `after` it."""
    found = _newest(events, (_REFUSED,))
    if found is None or (after is not None and found[0] < after):
        return None
    at, _, words = found
    return Told(words.removeprefix("Error creating: ").strip(), at)


def newest_warning(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the reason and words of the last warning about a pod that says who ended it."""
    found = last_of(events, _ENDED_BY)
    return found.words if found is not None else None


def newest_rejection(events: Iterable[Mapping[str, Any]], but_of: str) -> Told | None:
    """Return why a kubelet did not take, or put out, a pod that had the name before the one whose
    uid is `but_of`."""
    others = [item for item in events if _about(item).get("uid") != but_of]
    reasons = {str(item.get("reason")) for item in others}
    out_of = {reason for reason in reasons if reason.startswith(_OUT_OF)}
    return last_of(others, {"Evicted", *_NOT_TAKEN, *out_of})


def newest_claim_refusal(events: Iterable[Mapping[str, Any]], of: str) -> Told | None:
    """Return why the pod whose uid is `of` has no ResourceClaim, in words without the name that was
    drawn for it."""
    found = _newest((item for item in events if _about(item).get("uid") == of), (_UNCLAIMED,))
    if found is None:
        return None
    at, reason, words = found
    words = _DRAWN_CLAIM.sub(" is forbidden", _CLAIM_OF_POD.sub("", words))
    return Told(f"{reason}: {words}", at)


def _about(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return event.get("involvedObject") or event.get("regarding") or {}


def last_of(events: Iterable[Mapping[str, Any]], reasons: Container[str]) -> Told | None:
    """Return the newest Event for one of the reasons, with that."""
    newest = _newest(events, reasons)
    if newest is None:
        return None
    at, reason, words = newest
    return Told(f"{reason}: {words[:_MESSAGE_LIMIT]}", at)


def _newest(
    events: Iterable[Mapping[str, Any]], reasons: Container[str]
) -> tuple[datetime, str, str] | None:
    """Return when the newest Event for one of the reasons was seen, its reason, and its words."""
    found = [(event_time(item), item) for item in events if item.get("reason") in reasons]
    told = [(time, item) for time, item in found if time is not None]
    if not told:
        return None
    at, newest = max(told, key=lambda each: each[0])
    words = str(newest.get("message") or "").removeprefix(_COMBINED).strip()
    return at, str(newest["reason"]), words


def event_time(event: Mapping[str, Any]) -> datetime | None:
    """Return when an Event was last seen, of either form of the API."""
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
