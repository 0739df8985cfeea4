"""A trained model's reproducible answers: alone, in a batch, in chunks, with requests preempted.

Its matrices are the ones of the GGUF file, brought to float32 when it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.sampling_params import SamplingParams
from tests.engine.real_model.conftest import QUESTIONS, Oracle
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.reproducible_requests import WAYS, alone, answers, differing

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {
    "reproducible": True, "num_kv_blocks": 128, "max_num_seqs": 8, "max_model_len": 96,
    "max_num_batched_tokens": 256, "block_size": 16,
}  # fmt: skip
LITTLE = {"num_kv_blocks": 7}
ASKS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.0, "seed": 2, "top_k": 40, "top_p": 0.9},
)


def test_answers_are_the_same_bits_in_every_way(smollm2_file: Path, oracle: Oracle) -> None:
    limits = {"max_tokens": 20, "logprobs": 2}
    asked = [
        (oracle.chat_ids(question), SamplingParams(**limits, **ASKS[number % len(ASKS)]))
        for number, question in enumerate(QUESTIONS[:6])
    ]
    expected = alone(CoreDriver(str(smollm2_file), **OPTIONS), asked)
    assert oracle.text(expected[0][0])
    for way in ("batch", "chunks", "drafts"):
        for memory in ({}, LITTLE):
            driver = CoreDriver(str(smollm2_file), **{**OPTIONS, **WAYS[way], **memory})
            found = answers(driver, asked)
            assert (way, memory, *differing(found, expected)) == (way, memory, 0, 0)
            preempted = driver.scheduler.stats().preemptions_total
            assert (way, preempted > 0) == (way, memory is LITTLE)
