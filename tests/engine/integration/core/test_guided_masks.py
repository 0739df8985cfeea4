"""Masked and plain rows in one batch, eager and captured: without a grammar, on whatever device.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.structured_output.grammar import Grammar
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from atom.structured_outputs import StructuredOutputsParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.structured_output.masks_by_length import LateRows

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 20,
    "dtype": "float32",
    "gpu_memory_utilization": 0.5,
    "num_kv_blocks": 256,
}
ASKED = StructuredOutputsParams(choice=["what a grammar would say"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), head_dim=64)


def answers(
    checkpoint: Path, *, guided: bool, late: int = 0, seed: int = 0, **options: Any
) -> list[list[int]]:
    """Of 17 prompts, drawn and greedy; every third is masked when `guided`."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, **options})
    driver.guided.rows = rows = LateRows(driver.vocab_size, late=late, seed=seed)
    draw = np.random.default_rng(3)
    tokens: dict[int, list[int]] = {}
    driver.guided.hold = driver.scheduler.add  # there is no grammar to wait for
    for index, length in enumerate(draw.integers(1, 60, 17)):
        masked = guided and index % 3 == 0
        sampling = SamplingParams(
            temperature=index % 2 * 0.8,
            top_k=30 if index % 4 == 3 else -1,
            seed=index,
            max_tokens=20,
            ignore_eos=True,
            structured_outputs=ASKED if masked else None,
        )
        number = driver.add(draw.integers(3, driver.vocab_size, size=length).tolist(), sampling)
        tokens[number] = []
        if masked:
            driver.guided.rows.enter(number, Grammar(""), sampling)
    while driver.pipeline.has_requests():
        result = driver.step()
        if result is not None:
            for number, run in result.runs():
                tokens[number] += run
            assert all(row.reason == "length" for row in result.finished)
    assert (rows.late > 0, rows.apart > 0) == (late > 0, late > 0)
    return list(tokens.values())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"device": "cpu"}, id="cpu"),
        pytest.param({"device": "cpu", "depth": 1}, id="cpu, a step behind"),
        pytest.param({"device": "auto", "enforce_eager": True}, id="gpu, eager", marks=gpu),
        pytest.param({"device": "auto"}, id="gpu, graphs", marks=gpu),
        pytest.param({"device": "auto", "depth": 0}, id="gpu, graphs, at once", marks=gpu),
    ],
)
def test_masked_rows_keep_to_their_masks_and_the_others_never_notice(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    plain = answers(checkpoint, guided=False, **options)
    mixed = answers(checkpoint, guided=True, **options)
    for index, (alone, beside) in enumerate(zip(plain, mixed, strict=True)):
        if index % 3:
            assert beside == alone
        else:
            assert [token % 5 for token in beside] == [at % 5 for at in range(20)]
    assert mixed == answers(checkpoint, guided=True, device="cpu", depth=0)


LATE_WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "a step behind": {"depth": 1},
    "chunked prompts": {"max_num_batched_tokens": 20, "depth": 1},
    "prompts first": {"scheduling_policy": "prefill_first", "depth": 1},
    "preempted": {"num_kv_blocks": 12, "max_model_len": 128, "depth": 1},
    "no prefix cache": {"enable_prefix_caching": False, "depth": 1},
    "beside drafts": {"speculative": SpeculativeConfig(num_tokens=3, adaptive=False)},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("late", [2, 7])
@pytest.mark.parametrize("way", LATE_WAYS)
def test_masks_may_come_late_and_change_no_token_of_any_row(
    checkpoint: Path, way: str, late: int
) -> None:
    """Rows whose mask is late are set back, slow ones kept apart; all in the middle of others."""
    options = {"device": "cpu", "max_num_seqs": 20, **LATE_WAYS[way]}
    assert answers(checkpoint, guided=True, late=late, seed=late, **options) == answers(
        checkpoint, guided=True, device="cpu", depth=0
    )
