"""StepWatch: the steps of the last minute beside the predictions of a measured table of rates.

A device that is sick or throttled, or a table of another card, shows as a ratio away from 1. Only a
table that was measured on this card is compared: carried-over and assumed rates have errors that
are larger than such a difference. One process's readings of /metrics are its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from atom.advisor.launches import NO_LAUNCHES, Launches
from atom.advisor.operations import model_work
from atom.advisor.rates import Evidence, Tables
from atom.advisor.step_shape import Chunk, StepShape
from atom.advisor.step_time import StepTimer
from atom.config import Config
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.outlook_body import StepTotals
from atom.model_engine.wire.step_window import StepWindow
from atom.sizing import KV_ELEMENTS, KvElement, Sharding
from atom.sizing.cards import card_of_device
from atom.sizing.limits import RunLimits

_WINDOW_SECONDS = 60.0
_LEAST_STEPS = 20


class StepWatch:
    def __init__(
        self,
        timer: StepTimer | None = None,
        clock: Callable[[], float] = time.monotonic,
        launches: Launches = NO_LAUNCHES,
    ) -> None:
        """timer: None if no table of this card was measured. clock: in monotonic seconds. launches:
        of the engine's host."""
        self.timer = timer
        self._launches = launches
        self._clock = clock
        self._window = StepWindow(_WINDOW_SECONDS)

    def ratio(self, totals: StepTotals) -> float | None:
        """Note the totals so far; return the seconds of the steps since a minute ago by the
        predicted ones. None without a table, or with too few steps."""
        if self.timer is None:
            return None
        _, part = self._window.note(self._clock(), totals)
        if part.steps < _LEAST_STEPS:
            return None
        return part.seconds / predicted_seconds(self.timer, part, self._launches)


def predicted_seconds(
    timer: StepTimer, part: StepTotals, launches: Launches = NO_LAUNCHES
) -> float:
    """Predict steps of the mean shape: those with prompts and those without."""
    rows = part.rows / part.steps
    context = part.context_tokens / part.rows if part.rows else 0.0
    plain = part.steps - part.prompt_steps
    contexts = np.full(round(rows), max(1, round(context)), dtype=np.int64)
    seconds = 0.0
    if plain:
        count = max(1, len(contexts))
        seconds += plain * timer.seconds(StepShape.decodes(count, max(1, round(context))))
    if part.prompt_steps:
        tokens = max(1, round(part.prompt_tokens / part.prompt_steps))
        chunk = (Chunk(0, tokens),)
        shape = StepShape(contexts, len(contexts), chunk, len(contexts) + 1)
        launch = launches.of_step(shape)
        seconds += part.prompt_steps * launch.alone(timer.seconds(launch.shape))
    return seconds


def launches_of(timer: StepTimer | None, config: Config, report: EngineReport) -> Launches:
    """Return the launches of an engine, which its steps with prompts wait for."""
    if timer is None or config.execution.enforce_eager:
        return NO_LAUNCHES
    limits = RunLimits(
        block_size=config.cache.block_size,
        max_num_seqs=report.max_num_seqs,
        max_model_len=report.max_model_len,
        max_num_batched_tokens=report.max_num_batched_tokens,
    )
    card, ranks = timer.card, timer.work.ranks
    return Launches.for_limits(config.model.facts, limits, card.vendor, ranks, timer.rates.seconds)


def measured_timer(config: Config, report: EngineReport, tables: Tables) -> StepTimer | None:
    """Return the timer of an engine's steps by the table of its card; None if none was measured,
    or if a step has work that the tables do not know."""
    card = card_of_device(report.device) or tables.card(report.device.partition(" ")[0])
    if card is None or config.speculative is not None:
        return None
    ranks = config.parallel.tensor_parallel_size
    rates = tables.rates(card, ranks)
    if rates.evidence is not Evidence.MEASURED:
        return None
    kv = KV_ELEMENTS["fp8"] if "float8" in report.kv_cache_dtype else KvElement(
        _element_bytes(report.kv_cache_dtype)
    )  # fmt: skip
    element = _element_bytes(report.dtype) if report.on_cpu else None
    work = model_work(config.model.facts, kv, Sharding(ranks), element_bytes=element)
    return StepTimer(work, card, rates)


def _element_bytes(dtype: str) -> int:
    return 4 if dtype.endswith("32") else 2
