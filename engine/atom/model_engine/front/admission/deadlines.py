"""Deadlines: the time until a first token that a server allows, and its answer to a later one.

Pure. Used by AsyncLLMEngine.
"""

from __future__ import annotations

from atom.config import SchedulerConfig


class Deadlines:
    def __init__(self, config: SchedulerConfig) -> None:
        self._own_seconds = None if config.deadline_ms is None else config.deadline_ms / 1e3
        self._refuses = config.deadline_action == "refuse"

    def bounds(self, asked_seconds: float | None) -> tuple[float | None, float | None]:
        """Return the seconds by which a request's first token must be expected, else it is refused,
        and those by which a queued request must have it, else it is ended; None for any time.
        asked_seconds: that the request allows; None for the server's own."""
        seconds = self._own_seconds if asked_seconds is None else asked_seconds
        return (seconds, None) if self._refuses else (None, seconds)

    def ends_late_ones(self, deadline_seconds: float | None) -> bool:
        """Return whether a request of that deadline is queued and may be ended before its first
        token."""
        _, ended_after = self.bounds(deadline_seconds)
        return ended_after is not None
