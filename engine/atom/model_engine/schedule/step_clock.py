"""StepClock: the seconds that each step took, as the engine's turns tell them.

A step begins when it is scheduled, or when the step before it ends, since the host may be a step
ahead of the device. It ends with the first turn that knows its tokens; an engine without further
work has a turn, too, before it waits, or its last step would last until the next request. Used by
StepTime and StepCosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Step = TypeVar("Step")


class StepClock(Generic[Step]):
    """Times in monotonic seconds. Step: the facts of a step that its owner learns from."""

    def __init__(self) -> None:
        self._computing: deque[tuple[float, Step]] = deque()  # since when
        self._known: list[tuple[float, Step]] = []  # their tokens came since the last turn
        self._known_at = 0.0

    def began(self, now: float, step: Step) -> None:
        """Note a scheduled step."""
        self._computing.append((now, step))

    def ended(self) -> None:
        """Note that the tokens of the oldest such step are known."""
        self._known.append(self._computing.popleft())

    def turn(self, now: float) -> Iterator[tuple[Step, float]]:
        """Yield the steps that end now, each with its seconds, above 0."""
        for begun, step in self._known:
            seconds = now - max(begun, self._known_at)
            self._known_at = now
            if seconds > 0:
                yield step, seconds
        self._known.clear()
