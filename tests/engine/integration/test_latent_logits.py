"""Logits of models with latent attention equal transformers', of prompts and of decodes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from atom.model_engine.model_runner import ModelRunner
from atom.models.decoder import CausalLM
from tests.engine.integration.test_model_parity import CHECKPOINTS
from tests.support.core_driver import CoreDriver
from tests.support.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 10


@pytest.fixture(params=[name for name in CHECKPOINTS if name.startswith("deepseek")])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path, **CHECKPOINTS[request.param])


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All that the engine computes from here on."""
    seen: list[torch.Tensor] = []
    compute = CausalLM.compute_logits

    def recorded(model: CausalLM, hidden: torch.Tensor) -> torch.Tensor:
        result = compute(model, hidden)
        seen.append(result.clone())
        return result

    monkeypatch.setattr(CausalLM, "compute_logits", recorded)
    return seen


@pytest.mark.parametrize("backend", ["auto", "torch_ref"])
def test_logits_equal_transformers(
    checkpoint: Path, logits: list[torch.Tensor], backend: str
) -> None:
    driver = CoreDriver(
        str(checkpoint), backend=backend, max_num_batched_tokens=48, max_num_seqs=4, block_size=16
    )
    draw = np.random.default_rng(3)
    prompt = draw.integers(3, driver.vocab_size, size=110).tolist()
    (new,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=1)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt + new])).logits[0]
    got = torch.cat(logits)
    # Chunks: every position whose next token is known; then each position that was sampled at.
    prompts, decodes = got.split([len(prompt) - 1, NEW_TOKENS])
    assert (prompts - expected[: len(prompt) - 1]).abs().max() <= 1e-4
    assert (decodes - expected[len(prompt) - 1 : -1]).abs().max() <= 1e-4


def test_cache_takes_the_bytes_that_were_planned(checkpoint: Path) -> None:
    driver = CoreDriver(str(checkpoint), num_kv_blocks=40, max_model_len=64, block_size=16)
    runner = driver_runner(driver)
    tensors = {
        layer._cache.entries.data_ptr(): layer._cache.entries
        for layer in runner._model.attention_layers()
    }
    held = sum(entries.nbytes for entries in tensors.values())
    assert held == driver.report.kv_cache_bytes > 0


def driver_runner(driver: Any) -> ModelRunner:
    runner = driver.executor.runner
    assert isinstance(runner, ModelRunner)
    return runner
