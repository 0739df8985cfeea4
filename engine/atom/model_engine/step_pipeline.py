"""StepPipeline: schedule → submit → collect → update, with at most `depth` steps behind.

With depth 1 the host schedules a step while the device still computes the one before (deferred
output, guide seeds/000): the scheduler counts tokens that it does not know yet. Depth 0 waits for
each step. The same tokens come out either way. Used by EngineCore, benchmarks and tests; knows no
sockets.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.engine_protocol import EngineReport
from atom.model_engine.scheduler import Scheduler, StepResult

_SEEDS_APART = 2**32


class Executor(Protocol):
    """What runs batches: `submit` returns at once (or, without a device, when done), `collect`
    waits for the output. Outputs are collected in the order of submission. A batch that says
    `samples_later` is sampled by `sample`, before the next batch is submitted."""

    def submit(self, batch: ScheduledBatch) -> Any: ...

    def collect(self, handle: Any) -> ScheduledBatchOutput: ...


class StepPipeline:
    def __init__(self, scheduler: Scheduler, executor: Executor, *, depth: int) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._submitted: deque[tuple[ScheduledBatch, Any]] = deque()

    def has_work(self) -> bool:
        return bool(self._submitted) or self._scheduler.has_work()

    def step(self, now: float) -> StepResult | None:
        """Submit what can run; the result of the oldest step that is due, None if none is."""
        batch = self._scheduler.schedule(now)
        if batch is not None:
            self._submitted.append((batch, self._executor.submit(batch)))
        # Nothing schedulable means that the next decision needs an outstanding output.
        if len(self._submitted) > self._depth or (batch is None and self._submitted):
            oldest, handle = self._submitted.popleft()
            return self._scheduler.update(oldest, self._executor.collect(handle))
        return None


def build_scheduler(config: Config, report: EngineReport) -> Scheduler:
    """The scheduler of an engine that has started, over the blocks that it found room for."""
    model = config.model
    blocks = BlockManager(
        report.num_blocks,
        report.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        root=f"{model.path}|{report.dtype}|{report.kv_cache_dtype}",
    )
    return Scheduler(
        config.scheduler,
        blocks,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        # Ranks draw apart: the same prompt on two of them is to give two samples.
        seed=config.seed + _SEEDS_APART * config.parallel.data_parallel_rank,
    )
