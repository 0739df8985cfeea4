"""WaitBudget: how long one step, and all steps together, may wait for results of other processes.

One wait is short, and fruitless waits become shorter as they accumulate: however many sequences
turn slow in turn, the engine is idle for a small share of its time only. Reads the clock it is
given. Used by GuidedRows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

LONGEST_SECONDS = 0.025
_SHORTEST_SECONDS = 0.002
_MOST_SAVED_SECONDS = 0.05
_SHARE = 0.1  # of the time, that waits may take which last


class WaitBudget:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._saved_seconds = _MOST_SAVED_SECONDS
        self._at = clock()

    @contextlib.contextmanager
    def wait(self) -> Iterator[Callable[[], float]]:
        """Yield a function that returns the seconds left to wait, zero or less if time is up."""
        began = self._clock()
        grown = self._saved_seconds + (began - self._at) * _SHARE
        self._saved_seconds, self._at = min(grown, _MOST_SAVED_SECONDS), began
        longest = max(min(LONGEST_SECONDS, self._saved_seconds), _SHORTEST_SECONDS)
        yield lambda: began + longest - self._clock()
        self._saved_seconds = max(self._saved_seconds - (self._clock() - began), 0.0)
