"""A core whose every answer ends with its first step predicts latencies, as any other."""

from __future__ import annotations

import time
from pathlib import Path

from atom.model_engine.outlook.step_costs import LEAST_STEPS
from atom.model_engine.request import Request
from atom.model_engine.wire.engine_protocol import AddBody, encode
from atom.sampling_params import SamplingParams
from tests.support.engine_core.wired_core import WiredCore
from tests.support.models.tiny_model import make_tiny_checkpoint


def test_prompts_that_come_one_at_a_time_teach_the_core(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    core = WiredCore(model, num_kv_blocks=64, max_model_len=256)
    for number in range(1, LEAST_STEPS + 4):
        request = Request(
            id=number,
            prompt_token_ids=[number % 50 + 1] * 20,
            params=SamplingParams(max_tokens=1),
            max_total_tokens=21,
            arrive_time=time.monotonic(),
        )
        core.send(*encode(AddBody([request])))
        core.turn_until_done({number})
        core.turn()  # nothing is left: the core waits
    told = core.core._pipeline.outlook()
    core.close()
    assert told is not None
    assert told.steps.prompt_steps >= LEAST_STEPS
    assert told.predicted is not None
    assert told.predicted.ttft_seconds > 0
