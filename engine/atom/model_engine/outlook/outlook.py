"""Outlook: keeps the predicted latencies of a request that came now, while a core's steps run.

StepPipeline tells it of each step, which takes microseconds. Ten times a second it reads the
scheduler's queue, of which it looks at a bounded part, and twice a second it fits the step times.
Any thread may read `told`.
"""

from __future__ import annotations

from itertools import islice

import msgspec
import numpy as np

from atom.config import SchedulerConfig
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.outlook.load_ratio import LoadRatio
from atom.model_engine.outlook.prediction import Ahead, Bounds, Typical, predict
from atom.model_engine.outlook.step_costs import Costs, Noted, StepCosts
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.wire.outlook_body import OutlookBody, StepTotals

_REFRESH_SECONDS, _FIT_SECONDS = 0.1, 0.5
_LOOKED_AT = 256  # waiting requests, of which the lengths of all are taken
_REMEMBERED_PROMPTS = 64.0
_UNKNOWN = Typical(prompt_tokens=512.0, output_tokens=128.0, held_tokens=640.0, step_tokens=0.0)


class Outlook:
    """Times in monotonic seconds."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._bounds = Bounds(config.max_num_batched_tokens, config.max_step_seconds)
        self._costs = StepCosts()
        self._learned: Costs | None = None
        self._refreshed_at = self._fitted_at = float("-inf")
        # Of the newest prompts, decayed: steps, decodes, prompt tokens, prompts, context tokens.
        self._sums = [0.0] * 5
        self._load = LoadRatio()
        self._told = OutlookBody()
        self._idle = OutlookBody()

    def began(self, now: float, batch: ScheduledBatch) -> None:
        """Note a step that is submitted."""
        decodes = batch.num_decodes
        counts = batch.num_scheduled_tokens
        contexts = int(batch.num_computed_tokens[:decodes].sum()) + decodes
        prompt_tokens = prompts = 0
        if decodes < len(counts):
            prompt_tokens = int(counts[decodes:].sum())
            prompts = int(np.count_nonzero(batch.samples[decodes:]))
        self._costs.began(now, Noted(decodes, contexts, prompt_tokens, prompts))
        newest = (1, decodes, prompt_tokens, prompts, contexts)
        self._sums = [each + more for each, more in zip(self._sums, newest, strict=True)]

    def ended(self) -> None:
        """Note that the tokens of the oldest step are known."""
        self._costs.ended()

    def pause(self, now: float, scheduler: Scheduler) -> None:
        """Learn from the last step, and predict, before the engine waits. An engine that waits on
        has learned nothing since."""
        if self._costs.learn(now):
            self._refreshed_at = now
            self._refresh(now, scheduler)

    def turn(self, now: float, scheduler: Scheduler) -> None:
        """Learn from the steps that are known; at times, predict again."""
        self._costs.learn(now)
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            self._refresh(now, scheduler)

    def told(self, scheduler: Scheduler) -> OutlookBody:
        """Return the newest outlook; that of an empty queue once no request is left."""
        return self._told if scheduler.num_requests else self._idle

    def _refresh(self, now: float, scheduler: Scheduler) -> None:
        if self._sums[3] > _REMEMBERED_PROMPTS:
            share = _REMEMBERED_PROMPTS / self._sums[3]
            self._sums = [share * each for each in self._sums]
        totals = self._costs
        steps = StepTotals(
            steps=totals.timed_steps_total,
            seconds=totals.seconds_total,
            rows=totals.rows_total,
            context_tokens=totals.context_tokens_total,
            prompt_tokens=totals.prompt_tokens_total,
            prompt_steps=totals.prompt_steps_total,
        )
        if now - self._fitted_at >= _FIT_SECONDS or self._learned is None:
            self._fitted_at = now
            self._learned = totals.costs() or self._learned
        costs = self._learned
        if costs is None:
            self._told = self._idle = OutlookBody(steps)
            return
        typical, bounds = self._typical(), self._bounds
        load = self._load.ratio(now, steps, costs, _full_rows(scheduler, typical))
        found = predict(ahead_of(scheduler), costs, typical, bounds)
        self._told = OutlookBody(steps, msgspec.structs.replace(found, load=load))
        # Nothing is refreshed while no request is there: the load is then none.
        self._idle = OutlookBody(steps, predict(Ahead(), costs, typical, bounds))

    def _typical(self) -> Typical:
        steps, decodes, prompt_tokens, prompts, contexts = self._sums
        if not prompts:
            return _UNKNOWN
        mean_context = contexts / decodes if decodes else prompt_tokens / prompts
        return Typical(
            prompt_tokens=prompt_tokens / prompts,
            output_tokens=1.0 + decodes / prompts,
            held_tokens=mean_context,
            step_tokens=prompt_tokens / steps,
        )


def _full_rows(scheduler: Scheduler, typical: Typical) -> float:
    """Return the rows of a full step: as many as slots and blocks allow."""
    tokens = scheduler.blocks.pool.num_blocks * scheduler.blocks.block_size
    held = tokens / max(1.0, typical.held_tokens)
    return max(1.0, min(float(len(scheduler.rows.sequences)), held))


def ahead_of(scheduler: Scheduler) -> Ahead:
    """Read the queue: the rows as columns, and of the waiting requests the lengths of some."""
    rows, pool = scheduler.rows, scheduler.blocks.pool
    left = np.maximum(rows.num_given - rows.num_computed, 0)[rows.request_ids >= 0]
    partial = int(np.count_nonzero(left))
    stats = scheduler.stats()
    waiting = stats.requests_waiting
    looked_at = [each.num_tokens for each in islice(scheduler.waiting, _LOOKED_AT)]
    mean = sum(looked_at) / len(looked_at) if looked_at else 0.0
    computed = 1.0 - stats.cached_tokens_total / max(1, stats.prompt_tokens_total)
    free = pool.num_blocks - pool.num_referenced
    return Ahead(
        decodes=scheduler.num_running - partial,
        pending=waiting + partial,
        waiting=waiting,
        prompt_tokens=float(left.sum()) + waiting * mean * computed,
        free_rows=len(rows.sequences) - scheduler.num_running,
        free_tokens=float(free * scheduler.blocks.block_size),
    )
