"""Rollout windows: the next opening of the window of spec.rollout. Pure.

A window is as long on each of its days, by the wall clock of its zone: if that is set forward or
back in between, the window's end moves by an hour on the clock, and it never opens twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_A_WEEK = 7


@dataclass(frozen=True, slots=True)
class RolloutWindow:
    """Hold the openings: on `days` (0 is Monday) at `start` in `zone`, for `length`."""

    days: frozenset[int]
    start: time
    length: timedelta
    zone: ZoneInfo


def opens_at(window: RolloutWindow, now: datetime) -> datetime | None:
    """Return when the window opens next; None if it is open now."""
    today = now.astimezone(window.zone).date()
    # One that began yesterday, or the day before in another zone, may still be open.
    for number in range(-2, _A_WEEK + 2):
        day = today + timedelta(days=number)
        if day.weekday() not in window.days:
            continue
        opens = datetime.combine(day, window.start, window.zone).astimezone(UTC)
        if opens + window.length <= now:
            continue
        return None if opens <= now else opens
    raise AssertionError("a window has a day in every week")
