"""PromptDelay: prefill_first may hold prompts back for a while, to compute more of them at once.

The guide's scheduler_delay_factor (seeds/000): a prompt may begin once the oldest has waited longer
than that many times what the last prompts took. Nobody waits while nothing runs. Used by Scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable

from atom.model_engine.sequence import Sequence


class PromptDelay:
    """Times in monotonic seconds."""

    def __init__(self, factor: float) -> None:
        """factor: 0 for no delay."""
        self._factor = factor
        self._began_at: float | None = None  # the prompts that are being computed
        self._last_seconds = 0.0

    def began(self, now: float) -> None:
        """A step with prompts was scheduled."""
        self._began_at = now

    def passed(self, now: float, waiting: Iterable[Sequence], *, others_run: bool) -> bool:
        """Whether another of the `waiting` may begin."""
        if self._factor == 0:
            return True
        if self._began_at is not None:
            self._last_seconds = now - self._began_at
            self._began_at = None
        earliest = min((sequence.arrive_time for sequence in waiting), default=now)
        return not others_run or now - earliest > self._factor * self._last_seconds
