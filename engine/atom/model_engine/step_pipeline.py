"""StepPipeline: schedule → submit → collect → update, with at most `depth` steps behind.

With depth 1 the host schedules a step while the device still computes the one before (deferred
output, docs/adr/0002): the scheduler counts tokens that it does not know yet. Depth 0 waits for
each step. The same tokens come out either way.

Only a step that holds guided rows (structured output) waits in between: its layers are submitted,
then the tokens of the step before are taken in, which decide what its rows may choose from, and
then it is sampled. Used by EngineCore, benchmarks and tests; knows no sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
import numpy as np

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.schedule.step_result import StepResult
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.guided_requests import GuidedRequests
from atom.model_engine.wire.engine_protocol import EngineReport, FinishedRow, StatsBody
from atom.speculation.draft_lengths import draft_lengths
from atom.speculation.measured_cost import MeasuredCost, Timed
from atom.speculation.step_cost import Costs, DraftingLayers, step_cost

GRAMMAR_COMPLETE = "grammar_complete"

_SEEDS_APART = 2**32


class StepPipeline:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: StepExecutor,
        *,
        depth: int,
        guided: GuidedRequests | None = None,
        join: Callable[[], None] | None = None,
    ) -> None:
        """depth: 0 or 1. guided: None for an engine without structured output. join: called where
        a step has no batch, which other ranks may have one for (`Executor.join`)."""
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._guided = guided
        self._join = join
        self._submitted: deque[tuple[ScheduledBatch, int]] = deque()

    # ---- requests -----------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        if self._guided is not None and request.params.structured_outputs is not None:
            self._guided.hold(request)
        else:
            self._scheduler.add(request)

    def abort(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """End these requests; unknown ids (already finished) are ignored."""
        numbers = list(request_ids)
        if self._guided is None:
            return self._scheduler.abort(numbers)
        self._guided.rows.leave(numbers)
        return self._guided.drop(numbers) + self._scheduler.abort(numbers)

    def has_work(self) -> bool:
        """Whether a step has something to do. Requests that wait for their grammar are no work;
        `GuidedRequests.wake_fd` tells when one of them is."""
        return bool(self._submitted) or self._scheduler.has_work()

    def stats(self) -> StatsBody:
        """The scheduler's, those counted as waiting that wait for their grammar."""
        stats = self._scheduler.stats()
        if self._guided is None or not self._guided.num_held:
            return stats
        waiting = stats.requests_waiting + self._guided.num_held
        return msgspec.structs.replace(stats, requests_waiting=waiting)

    # ---- steps --------------------------------------------------------------------------------

    def step(self, now: float) -> StepResult | None:
        """Submit what can run; the result of the oldest step that is due, None if none is."""
        refused = self._admit_guided()
        batch = self._scheduler.schedule(now)
        if batch is not None and self._guided is not None and self._guided.rows.holds_any(batch):
            result = self._step_guided(replace(batch, samples_later=True), self._guided)
        else:
            result = self._step_plain(batch)
        return _with_finished(result, refused) if refused else result

    def _step_plain(self, batch: ScheduledBatch | None) -> StepResult | None:
        if batch is not None:
            self._submitted.append((batch, self._executor.submit(batch)))
        elif self._join is not None:
            self._join()
        # Nothing schedulable means that the next decision needs an outstanding output.
        if len(self._submitted) > self._depth or (batch is None and self._submitted):
            return self._take_in()
        return None

    def _step_guided(self, batch: ScheduledBatch, guided: GuidedRequests) -> StepResult | None:
        ticket = self._executor.submit(batch)
        result = self._take_in() if self._submitted else None
        self._submitted.append((batch, ticket))
        self._executor.sample(ticket, guided.rows.mask(batch))
        return self._take_in() if self._depth == 0 else result

    def _take_in(self) -> StepResult:
        """The oldest step's tokens."""
        batch, ticket = self._submitted.popleft()
        result = self._scheduler.update(batch, self._executor.collect(ticket))
        return result if self._guided is None else self._follow(result, self._guided)

    def _follow(self, result: StepResult, guided: GuidedRequests) -> StepResult:
        """Let the guided rows see their tokens, and end those that must end of it."""
        ends = guided.rows.accept(result.runs())
        guided.rows.leave(row.request_id for row in result.finished)
        if not ends:
            return result
        finished = {row.request_id: row for row in result.finished}
        for end in ends:
            guided.rows.leave([end.request_id])
            for row in self._scheduler.end([end.request_id], FinishReason.STOP, GRAMMAR_COMPLETE):
                finished[row.request_id] = row
            if end.error is not None:  # also of one that ended by the very token it may not have
                finished[end.request_id] = msgspec.structs.replace(
                    finished[end.request_id],
                    reason=FinishReason.ERROR.value,
                    detail=end.error,
                    param=end.param,
                )
        return replace(result, finished=list(finished.values()))

    def _admit_guided(self) -> list[FinishedRow]:
        """Schedule those whose grammar is there; who was refused."""
        if self._guided is None:
            return []
        admitted, refused = self._guided.take()
        for request in admitted:
            self._scheduler.add(request)
        return refused


def _with_finished(result: StepResult | None, finished: list[FinishedRow]) -> StepResult:
    if result is None:
        none = np.zeros(0, dtype=np.int64)
        return StepResult(none, none.astype(np.int32), finished)
    return replace(result, finished=[*result.finished, *finished])


def build_scheduler(config: Config, report: EngineReport) -> Scheduler:
    """The scheduler of an engine that has started, over the blocks that it found room for."""
    model = config.model
    blocks = BlockManager(
        report.num_blocks,
        report.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        root="|".join(
            map(str, (model.path, model.facts.quantization, report.dtype, report.kv_cache_dtype))
        ),
        windows=report.cache_windows,
    )
    lengths = None
    if config.speculative is not None:
        lengths = draft_lengths(
            config.speculative, config.scheduler.max_num_seqs, _step_costs(config, report)
        )
    return Scheduler(
        config.scheduler,
        blocks,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        # Ranks draw apart: the same prompt on two of them is to give two samples.
        seed=config.seed + _SEEDS_APART * config.parallel.data_parallel_rank,
        draft_lengths=lengths,
    )


def _step_costs(config: Config, report: EngineReport) -> Costs:
    """As they were timed at start, else by the model's facts."""
    layers = None
    if config.speculative is not None and config.speculative.by_layers:
        layers = DraftingLayers(None if config.draft is None else config.draft.facts)
    cost = step_cost(config.model.facts, on_cpu=report.on_cpu, drafting=layers)
    if not report.timed_steps:
        return cost
    return MeasuredCost([Timed(*msgspec.structs.astuple(step)) for step in report.timed_steps])


def build_guided(config: Config) -> GuidedRequests:
    """Structured output for the model of this configuration."""
    model = config.model
    return GuidedRequests(
        CompilerSetup(
            tokenizer_folder=str(model.tokenizer_path),
            vocab_size=model.vocab_size,
            end_token_ids=list(model.eos_token_ids),
        )
    )
