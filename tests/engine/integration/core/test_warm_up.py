"""Steps run at start leave nothing behind, and no served step is the first of its kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.runner.warm_up import warm_up
from atom.utils import long_chunks
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.models.tiny_model import make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 20,
    "max_model_len": 256,
    "num_kv_blocks": 400,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), architecture="qwen3", head_dim=32)


def warmed(driver: CoreDriver, shares: list[float]) -> CoreDriver:
    """As on a GPU: a CPU has nothing to warm."""
    runner: ModelRunner = driver.executor.runner
    with torch.inference_mode(), runner._few_layers():
        warm_up(runner.steps, driver.config, runner._caches.shape(64), shares.append)
    return driver


@pytest.mark.parametrize("max_num_seqs", [20, 1])
def test_a_warmed_engine_answers_as_one_that_is_not(checkpoint: Path, max_num_seqs: int) -> None:
    options = {**OPTIONS, "max_num_seqs": max_num_seqs}
    cold, shares = CoreDriver(str(checkpoint), **options), []
    warm = warmed(CoreDriver(str(checkpoint), **options), shares)
    requests = mixed_requests(cold.vocab_size, 12)
    assert warm.generate_each(requests) == cold.generate_each(requests)
    assert warm.logprobs == cold.logprobs
    assert shares == sorted(shares)
    assert shares[0] == 0.0


def steps_of_start(checkpoint: Path) -> list[ScheduledBatch]:
    driver = CoreDriver(str(checkpoint), **OPTIONS)
    submitted: list[ScheduledBatch] = []
    steps = driver.executor.runner.steps
    submit = steps.submit
    steps.submit = lambda batch: submitted.append(batch) or submit(batch)
    warmed(driver, [])
    return submitted


def test_steps_of_every_size_are_run(checkpoint: Path) -> None:
    submitted = steps_of_start(checkpoint)
    decodes = {batch.num_decodes for batch in submitted}
    assert {1, 2, 4, 8, 16, 19, 20} <= decodes, "the largest step holds a prompt beside its decodes"
    prompts = {batch.total_tokens_num for batch in submitted if batch.num_decodes == 0}
    assert {1, 2, 4, 8, 16, 32, 64} <= prompts
    assert max(batch.total_tokens_num for batch in submitted) <= OPTIONS["max_num_batched_tokens"]


def test_chunks_of_every_pair_of_lengths_are_run(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_chunks, "_LENGTHS", (32, 16))
    monkeypatch.setattr(long_chunks, "_LEAST_SEEN", 0)
    submitted = steps_of_start(checkpoint)
    planned = long_chunks.planned_chunks(OPTIONS["max_num_batched_tokens"], 255)
    behind = {
        (int(batch.num_computed_tokens[0]), int(batch.num_scheduled_tokens[0]))
        for batch in submitted
        if batch.num_decodes == 0
    }
    assert set(planned) == {row for row in behind if row[0]} == {(48, 48)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_served_step_needs_a_kernel_that_the_start_did_not(tmp_path: Path, dtype: str) -> None:
    checkpoint = make_tiny_checkpoint(
        tmp_path, architecture="qwen3", head_dim=64, max_position_embeddings=20_480
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kernels.late_kernels", str(checkpoint), dtype],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["at_start"]["_decode_append_kernel"] >= 1, "or nothing was counted"
    assert found["late"] == {}
