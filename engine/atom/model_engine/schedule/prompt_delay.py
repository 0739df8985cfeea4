"""PromptDelay: prefill_first may hold prompts back for a while, to compute more of them at once.

The option is scheduler_delay_factor (docs/guides/scheduling.md): a prompt may begin once the oldest
has waited longer than that many times the duration of the last prompts, measured from the decision
to compute them until the next decision that knows their tokens (so it is the same with the host a
step behind). No prompt waits while no row runs. Used by Scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from atom.model_engine.sequence import Sequence


class PromptDelay:
    """Times in monotonic seconds."""

    def __init__(self, factor: float) -> None:
        """factor: 0 for no delay."""
        self._factor = factor
        self._computing: deque[float] = deque()  # since when, of steps with prompts
        self._computed_since: float | None = None  # of the newest one whose tokens are known
        self._last_seconds = 0.0

    def began(self, now: float) -> None:
        """Record the start of a step with prompts."""
        if self._factor:
            self._computing.append(now)

    def ended(self) -> None:
        """Record that the tokens of the oldest such step are known."""
        if self._factor:
            self._computed_since = self._computing.popleft()

    def passed(self, now: float, waiting: Iterable[Sequence], *, others_run: bool) -> bool:
        """Return whether another of the `waiting` may begin."""
        if self._factor == 0:
            return True
        if self._computed_since is not None:
            self._last_seconds = now - self._computed_since
            self._computed_since = None
        earliest = min((sequence.arrive_time for sequence in waiting), default=now)
        return not others_run or now - earliest > self._factor * self._last_seconds
