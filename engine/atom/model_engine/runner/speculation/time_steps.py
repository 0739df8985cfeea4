"""Time steps with and without extra tokens at start: rows carry drafts according to these costs.

Steps are submitted as in serving, the host one step behind, so the host's launches count if the
device waits for them. ModelRunner calls this after the warm-up, on slots and blocks that no request
has; the steps are the same on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.warm_up import computing_ahead, decode_batch, prompt_batch
from atom.model_engine.wire.engine_protocol import TimedStep

_STEPS = 4  # that are timed together
_ROWS = (1, 4, 16, 64, 256)
# Tokens of a long context: reading them must dominate.
_FAR, _LEAST_FAR = 4096, 256


def time_steps(
    steps: StepRunner,
    config: Config,
    cache: CacheShape,
    most_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[TimedStep]:
    """Time steps by rows and tokens ahead, up to `most_tokens` of a step, and without and with most
    of them on a long context, if the cache has room for one with as many rows. Return nothing for a
    model whose sequences are too short."""
    most = config.scheduler.num_speculative_tokens
    reach = 2 + (1 + _STEPS) * (1 + most)
    longest = config.model.max_model_len - 1 - reach
    if longest < 0:
        return []
    slots = config.scheduler.max_num_seqs
    kinds = [
        (rows, ahead, 0)
        for rows in sorted({min(rows, slots) for rows in (*_ROWS, slots)})
        for ahead in sorted({0, 1, most})
        if rows * (1 + ahead) <= min(most_tokens, config.scheduler.max_num_batched_tokens)
    ]
    rows = max((rows for rows, ahead, _ in kinds if ahead == most), default=1)
    far = min(_FAR, longest, cache.num_blocks * cache.block_size // rows - reach)
    if far >= _LEAST_FAR:
        kinds += [(rows, ahead, far) for ahead in (0, most)]
    timed = []
    for rows, ahead, context in kinds:
        # Every slot is at its first token or far on, and has blocks up to the farthest position.
        steps.collect(steps.submit(prompt_batch([1] * rows, cache)))
        if context:
            steps.slots.device.num_computed[:rows] = context
        batch = decode_batch([reach + context] * rows, cache, apart=context > 0)
        seconds = _seconds(steps, computing_ahead(batch, ahead, max(1, context)), clock)
        timed.append(TimedStep(rows, ahead, seconds, context))
    return timed


def _seconds(steps: StepRunner, batch: ScheduledBatch, clock: Callable[[], float]) -> float:
    """Measure the seconds of one step among several; rows enter with one before."""
    steps.collect(steps.submit(batch))
    batch = replace(batch, new_rows=())
    started, outstanding = clock(), None
    for _ in range(_STEPS):
        submitted = steps.submit(batch)
        if outstanding is not None:
            steps.collect(outstanding)
        outstanding = submitted
    if outstanding is not None:
        steps.collect(outstanding)
    return (clock() - started) / _STEPS
