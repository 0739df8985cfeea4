"""On a GPU: classes without a family give transformers' greedy tokens, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from atom.sizing.families.fallback import FALLBACKS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.fallback_checkpoints import make_fallback_checkpoint, published_model
from tests.support.models.greedy_oracle import GreedyAnswers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

NEW_TOKENS = 8
PROMPT_LENGTHS = (1, 15, 16, 46, 100)


@pytest.mark.parametrize("architecture", FALLBACKS)
def test_tokens_equal_transformers(architecture: str, tmp_path: Path) -> None:
    """In chunks, with several rows in a step, and with cached prefixes."""
    folder = make_fallback_checkpoint(tmp_path, architecture)
    model = published_model(folder, architecture)
    driver = CoreDriver(
        str(folder), device="auto", num_kv_blocks=200, max_num_batched_tokens=48, max_num_seqs=4,
        block_size=16,
    )  # fmt: skip
    draw = np.random.default_rng(7)
    prompts = [draw.integers(3, driver.vocab_size, size=n).tolist() for n in PROMPT_LENGTHS]
    expected = GreedyAnswers(model, prompts, NEW_TOKENS)
    first = driver.generate(prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert first == expected.answers(first)
    assert driver.generate(prompts, max_tokens=NEW_TOKENS, ignore_eos=True) == first
    assert driver.scheduler.stats().cached_tokens_total > 0
