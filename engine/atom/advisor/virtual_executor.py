"""VirtualExecutor: a device that computes nothing and takes as long as a step is predicted to take.

It takes the place of a model runner behind the engine's own step pipeline. With the host a step
behind, a submitted step begins when the device is free, and the host waits for the oldest one.
Used by the simulation; time is a number that it moves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atom.advisor.step_shape import StepShape
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask

StepSeconds = Callable[[StepShape], float]


class VirtualClock:
    """The time of one engine's host, in seconds from the start of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance_to(self, when: float) -> None:
        """Move to a time, unless it is past."""
        self.now = max(self.now, when)


@dataclass(frozen=True, slots=True)
class _Submitted:
    ends_at: float
    samples: int


class VirtualExecutor:
    """Implements StepExecutor. Every token that it draws is 0."""

    def __init__(self, step_seconds: StepSeconds, clock: VirtualClock) -> None:
        self._step_seconds = step_seconds
        self._clock = clock
        self._tickets = itertools.count()
        self._submitted: dict[int, _Submitted] = {}
        self._free_at = 0.0
        self.busy_seconds = 0.0
        self.steps = 0

    def submit(self, batch: ScheduledBatch) -> int:
        """Start a batch as soon as the device is free."""
        seconds = self._step_seconds(StepShape.of(batch))
        self._free_at = max(self._clock.now, self._free_at) + seconds
        self.busy_seconds += seconds
        self.steps += 1
        ticket = next(self._tickets)
        self._submitted[ticket] = _Submitted(self._free_at, int(np.count_nonzero(batch.samples)))
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        """Do nothing: the tokens of a simulated step are drawn with it."""

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        """Wait until the step ends."""
        step = self._submitted.pop(ticket)
        self._clock.advance_to(step.ends_at)
        return ScheduledBatchOutput(token_ids=np.zeros(step.samples, dtype=np.int32))
