"""Decode steps of a steady batch: rows that all run, and the time of each step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine

DECODE_CONTEXT = 1024
DECODE_STEPS = 128
_WARM_UP = 16  # tokens of each row, before any step is timed


def begin_decodes(
    engine: OfflineEngine, rows: int, sampling: SamplingParams, loras: Sequence[LoRARequest] = ()
) -> None:
    """Add rows whose contexts will be around 1,024 tokens, and step until all of them decode.
    loras: that rows have in turn."""
    draw = np.random.default_rng(1)
    params = replace(sampling, max_tokens=DECODE_STEPS + _WARM_UP + 8)
    for row in range(rows):
        lora = loras[row % len(loras)] if loras else None
        engine.add(engine.random_prompt(DECODE_CONTEXT - DECODE_STEPS // 2, draw), params, lora)
    produced = 0
    while produced < rows * _WARM_UP:  # prompts, then some decodes
        result = engine.step()
        produced += 0 if result is None else len(result.token_ids)


def decode_step_seconds(engine: OfflineEngine) -> float:
    """Measure a step of the rows that run, and let them end."""
    started, steps = time.perf_counter(), 0
    while steps < DECODE_STEPS:
        steps += engine.step() is not None
    seconds = (time.perf_counter() - started) / DECODE_STEPS
    engine.run()
    return seconds
