"""StepWindow: the steps of a core during the last seconds, from its totals. Pure.

Totals are read now and then, by a core itself (LoadRatio) or by a server (StepWatch); the window
begins with the newest reading that is old enough.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable

from msgspec.structs import astuple

from atom.model_engine.wire.outlook_body import StepTotals

_MOST_READINGS = 512


class StepWindow:
    """Times in monotonic seconds."""

    def __init__(self, seconds: float) -> None:
        """seconds: of the window."""
        self._seconds = seconds
        self._readings: deque[tuple[float, StepTotals]] = deque(maxlen=_MOST_READINGS)

    def note(self, now: float, totals: StepTotals) -> tuple[float, StepTotals]:
        """Note the totals so far; return the seconds of the window, and its steps."""
        readings = self._readings
        if readings and totals.steps < readings[-1][1].steps:
            readings.clear()  # a rank was lost
        readings.append((now, totals))
        while len(readings) > 2 and readings[1][0] <= now - self._seconds:
            readings.popleft()
        begun, before = readings[0]
        return now - begun, StepTotals(*map(operator.sub, astuple(totals), astuple(before)))


def total_steps(parts: Iterable[StepTotals]) -> StepTotals:
    """Add the steps of several ranks up."""
    return StepTotals(*map(sum, zip(*map(astuple, parts), strict=True)))
