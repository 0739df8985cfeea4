"""VirtualEngine: one engine of a simulation, the real pipeline over a device that only takes time.

Its clock is that of its host. It moves from step to step and, if nothing can be scheduled while
pages of a prefix are read, to the end of their copies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atom.advisor.engine_form import EngineForm
from atom.advisor.launches import NO_LAUNCHES, Launches
from atom.advisor.step_shape import StepShape
from atom.advisor.virtual.executor import StepSeconds, VirtualClock, VirtualExecutor
from atom.advisor.virtual.files import Disk, VirtualFiles
from atom.advisor.virtual.mover import VirtualMover
from atom.model_engine.request import Request
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.wire.engine_protocol import TimedStep

# Steps that an engine with graphs times at its start: rows, tokens of a step at most, and of a long
# context.
_TIMED_ROWS, _MOST_TIMED, _NEAR, _FAR = (1, 4, 16, 64, 256), 512, 64, 4096

NEVER = float("inf")


class VirtualEngine:
    def __init__(
        self,
        form: EngineForm,
        step_seconds: StepSeconds,
        launches: Launches = NO_LAUNCHES,
        host_bytes_per_second: float = NEVER,
        disk_bytes_per_second: float = NEVER,
    ) -> None:
        """host_bytes_per_second: of copies between device and host, for a tier;
        disk_bytes_per_second: of files behind it."""
        self.clock = VirtualClock()
        self.executor = VirtualExecutor(step_seconds, self.clock, launches, form)
        self._mover: VirtualMover | None = None
        self._files: VirtualFiles | None = None
        if form.host is not None:
            self._mover = VirtualMover(form.host, host_bytes_per_second, self.executor)
            if form.file_bytes:
                disk = Disk(form.file_bytes, disk_bytes_per_second)
                self._files = VirtualFiles(disk, form.host, self.clock, form.adapters)
        timed = timed_steps(form, step_seconds)
        self.scheduler = form.scheduler(self._mover, self._files, timed)
        self.pipeline = StepPipeline(self.scheduler, self.executor, depth=form.depth)
        self._kv_seconds = self._kv_most = 0.0
        self.is_blocked = False  # requests are queued, none runs, and others hold the blocks

    @property
    def next_turn(self) -> float:
        """Return when the engine has something to do; infinity if it has no request, or if blocks
        of other engines' requests have to be freed first."""
        if self.pipeline.has_work() and not self.is_blocked:
            return self.clock.now
        ends = [each.next_end for each in (self._mover, self._files) if each is not None]
        known = [each for each in ends if each is not None]
        if not known or not self.pipeline.has_requests():
            return NEVER
        return max(self.clock.now, min(known))

    def add(self, request: Request, now: float) -> None:
        self.pipeline.add(request)
        self.unblock(now)

    def unblock(self, now: float) -> None:
        """Look at the queue again, since blocks may have been freed."""
        self.clock.advance_to(now)
        self.is_blocked = False

    def turn(self) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """Run one step; return the requests that got tokens, one entry a token, and those that
        ended with their cached tokens."""
        self.clock.advance_to(self.next_turn)
        before, self.is_blocked = self.clock.now, False
        result = self.pipeline.step(before)
        if not self.pipeline.has_work():
            self.pipeline.pause(self.clock.now)
        pool = self.scheduler.blocks.pool
        held = pool.num_referenced / pool.num_blocks
        self._kv_most = max(self._kv_most, held)
        self._kv_seconds += held * (self.clock.now - before)
        if result is None:
            self.is_blocked = self.pipeline.is_blocked
            return np.zeros(0, dtype=np.int64), []
        ids = result.request_ids
        tokens = ids if result.counts is None else np.repeat(ids, result.counts)
        return tokens, [(row.request_id, row.num_cached_tokens) for row in result.finished]

    @property
    def tier_tokens(self) -> int:
        """Return the prompt tokens that were found in the host's tier."""
        tiers = self.scheduler.tiers
        return 0 if tiers is None else tiers.counts.found_tokens

    @property
    def file_tokens(self) -> int:
        """Return the prompt tokens that were found in files."""
        tiers = self.scheduler.tiers
        return 0 if tiers is None else tiers.counts.disk_found_tokens

    @property
    def kv_seconds(self) -> float:
        """Return the share of held blocks times seconds, summed over its steps."""
        return self._kv_seconds

    @property
    def kv_most(self) -> float:
        return self._kv_most


def timed_steps(form: EngineForm, step_seconds: StepSeconds) -> list[TimedStep]:
    """Return the steps with and without drafts that an engine of this form would have timed at its
    start, by which it chooses the number of drafts. An engine without graphs times none."""
    if form.drafts is None or not form.depth:
        return []
    slots, most = form.limits.max_num_seqs, form.drafts.tokens
    kinds = [
        (rows, drafts, 0)
        for rows in sorted({min(rows, slots) for rows in (*_TIMED_ROWS, slots)})
        for drafts in sorted({0, 1, most})
        if rows * (1 + drafts) <= min(_MOST_TIMED, form.limits.max_num_batched_tokens)
    ]
    rows = max((rows for rows, drafts, _ in kinds if drafts == most), default=1)
    if form.limits.max_model_len > _FAR:
        kinds += [(rows, drafts, _FAR) for drafts in (0, most)]
    return [
        TimedStep(rows, drafts, step_seconds(StepShape.decodes(rows, far or _NEAR, drafts)), far)
        for rows, drafts, far in kinds
    ]
