"""StartupTimeline: how far start-up is, how fast it goes, and whether it has stopped moving.

Fed with (phase, share done) as they come; asked by /health, which shows it, and by /startup and
/live, which tell a slow start from a stalled one: a slow one may exceed its budget as long as it
moves. Knows neither HTTP nor the engine; its clock is a parameter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from atom.utils.time_left import seconds_left

LOADING_WEIGHTS = "loading weights"
DOWNLOADING_WEIGHTS = "downloading weights"
# Every per cent of the weights is reported; other phases are silent while kernels are compiled.
_STALL_SECONDS = {LOADING_WEIGHTS: 180.0}
_SILENT_PHASE_STALL_SECONDS = 900.0
# The rest is for the probe that asks only every few seconds.
_MOST_OF_THE_BUDGET = 0.8


class StartupTimeline:
    """Times the phases of start-up. `budget_seconds`: how long start-up may take whether it moves
    or not; None for any time."""

    def __init__(
        self, budget_seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._budget_seconds = budget_seconds
        self._begun = self._phase_begun = self._moved = clock()
        self._phase, self._share = "opening the model", 0.0
        self._loading_seconds: float | None = None  # of the weights, once they are there
        self._ready_seconds: float | None = None
        self.weights_bytes: int | None = None  # on disk; set once the model is open

    def note(self, phase: str, share: float) -> None:
        """Note that `phase` is `share` (0 to 1) done; another phase means that the one before is
        complete."""
        now = self._clock()
        if phase != self._phase:
            self._end_phase(now)
            self._phase, self._phase_begun = phase, now
        elif share <= self._share:
            return
        self._share, self._moved = share, now

    def ready(self) -> None:
        """Start-up is complete."""
        if self._ready_seconds is None:
            now = self._clock()
            self._end_phase(now)
            self._ready_seconds = now - self._begun

    @property
    def is_overdue(self) -> bool:
        """Return whether the budget is spent and nothing moves: only a restart can help."""
        if self._budget_seconds is None or self._ready_seconds is not None:
            return False
        return self._clock() - self._begun > self._budget_seconds and self._is_stalled

    @property
    def outlives_budget(self) -> bool:
        """Return whether most of the budget is spent, and start-up needs and deserves more of
        it."""
        if self._budget_seconds is None or self._is_stalled:
            return False
        return self._clock() - self._begun > _MOST_OF_THE_BUDGET * self._budget_seconds

    def progress(self) -> dict[str, Any]:
        """Describe progress for /health while the engine starts."""
        now = self._clock()
        shown: dict[str, Any] = {
            "phase": self._phase,
            "fraction": round(self._share, 4),
            "phase_seconds": round(now - self._phase_begun, 1),
            "seconds_without_progress": round(now - self._moved, 1),
            "elapsed_seconds": round(now - self._begun, 1),
            "seconds_left": self._seconds_left(now),
            "stalled": self._is_stalled,
        }
        if self._phase in (LOADING_WEIGHTS, DOWNLOADING_WEIGHTS) and self.weights_bytes:
            done = int(self._share * self.weights_bytes)
            spent = self._moved - self._phase_begun
            shown["bytes_done"], shown["bytes_total"] = done, self.weights_bytes
            shown["bytes_per_second"] = int(done / spent) if spent > 0 else None
        return shown

    def _seconds_left(self, now: float) -> float | None:
        """Estimate the seconds that are left of the phase; None if unknown."""
        left = seconds_left(self._share, self._moved - self._phase_begun)
        return None if left is None else round(max(0.0, left - (now - self._moved)), 1)

    def measured(self) -> dict[str, Any]:
        """Return the measured times of start-up for /server_info; null if not measured."""
        return {
            "startup_seconds": _rounded(self._ready_seconds),
            "weights_loading_seconds": _rounded(self._loading_seconds),
            "checkpoint_bytes": self.weights_bytes,
        }

    @property
    def _is_stalled(self) -> bool:
        limit = _STALL_SECONDS.get(self._phase, _SILENT_PHASE_STALL_SECONDS)
        return self._ready_seconds is None and self._clock() - self._moved > limit

    def _end_phase(self, now: float) -> None:
        if self._phase == LOADING_WEIGHTS:
            self._loading_seconds = now - self._phase_begun


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
