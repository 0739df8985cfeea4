"""VirtualExecutor: a device that computes nothing and takes as long as a step is predicted to take.

It takes the place of a model runner behind the engine's own step pipeline. With the host a step
behind, a submitted step begins when the device is free, and the host waits for the oldest one.
Submitting takes the host its own time (Launches): of a step that is launched op by op, the device
computes each op after its launch, and does not end before the host. A draft is accepted by a draw.
Used by the simulation; time is a number that it moves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atom.advisor.engine_form import EngineForm
from atom.advisor.launches import NO_LAUNCHES, Launches
from atom.advisor.step_shape import StepShape
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.row_columns import NO_LORA

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
    """A step under way. samples: rows that get tokens; drafts: that each of these has, None if no
    row has any."""

    ends_at: float
    samples: int
    drafts: NDArray[np.int32] | None = None


class VirtualExecutor:
    """Implements StepExecutor. Every token that it draws is 0."""

    def __init__(
        self,
        step_seconds: StepSeconds,
        clock: VirtualClock,
        launches: Launches = NO_LAUNCHES,
        form: EngineForm | None = None,
    ) -> None:
        """form: of the engine, for its drafts and adapters; None for an engine without either."""
        self._step_seconds = step_seconds
        drafts = None if form is None else form.drafts
        self._acceptance = 0.0 if drafts is None else drafts.acceptance
        self._draws = np.random.default_rng(0)
        self._adapters: NDArray[np.int32] | None = None  # the adapter's slot of each row's
        if form is not None and form.adapters is not None:
            self._adapters = np.full(form.limits.max_num_seqs, NO_LORA, dtype=np.int32)
        self._launches = launches
        self.clock = clock
        self._tickets = itertools.count()
        self._submitted: dict[int, _Submitted] = {}
        self.free_at = 0.0  # when the device has computed all that was submitted
        self.busy_seconds = 0.0
        self.steps = 0

    def submit(self, batch: ScheduledBatch) -> int:
        """Start a batch as soon as the device is free."""
        shape = StepShape.of(batch)
        if self._adapters is not None:
            shape = _with_adapters(shape, batch, self._adapters)
        launch = self._launches.of_step(shape)
        seconds = self._step_seconds(launch.shape)
        may_begin = self.clock.now + launch.before
        self.clock.advance_to(may_begin + launch.beside)
        self.free_at = max(max(may_begin, self.free_at) + seconds, self.clock.now)
        self.busy_seconds += seconds
        self.steps += 1
        ticket = next(self._tickets)
        samples = int(np.count_nonzero(batch.samples))
        drafts = None
        if shape.drafts:
            drafts = np.zeros(samples, dtype=np.int32)
            drafts[: batch.num_decodes] = batch.num_scheduled_tokens[: batch.num_decodes] - 1
        self._submitted[ticket] = _Submitted(self.free_at, samples, drafts)
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        """Do nothing: the tokens of a simulated step are drawn with it."""

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        """Wait until the step ends."""
        step = self._submitted.pop(ticket)
        self.clock.advance_to(step.ends_at)
        if step.drafts is None:
            return ScheduledBatchOutput(token_ids=np.zeros(step.samples, dtype=np.int32))
        counts = 1 + self._accepted(step.drafts)
        return ScheduledBatchOutput(np.zeros(int(counts.sum()), dtype=np.int32), counts)

    def _accepted(self, drafts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Draw how many drafts of each row are accepted before one is not."""
        if self._acceptance >= 1.0:
            return drafts
        held = self._draws.geometric(1.0 - self._acceptance, size=len(drafts)) - 1
        return np.minimum(drafts, held).astype(np.int32)


def _with_adapters(shape: StepShape, batch: ScheduledBatch, slots: NDArray[np.int32]) -> StepShape:
    """Return the shape of a step with the adapters of its rows. slots: of adapters by slot of a
    row, which rows that enter change."""
    for row in batch.new_rows:
        slots[row.slot] = row.lora_slot
    of_rows = slots[batch.slots]
    has_one = of_rows != NO_LORA
    return replace(
        shape,
        adapters=len(np.unique(of_rows[has_one])),
        adapted_tokens=int(batch.num_scheduled_tokens[has_one].sum()),
        loaded=len(batch.lora_loads),
    )
