"""Drafts that hold with a set probability hold that often, and give the tokens that they should.

A model and a draft model of EAGLE-3 whose logits are all alike draw by noise alone, and so the same
token where the draft vocabulary has it (in whole groups of the draw's first race, which weighs them
by their tokens): a draft holds with the share of the vocabulary that it has, whatever came before.
Of k drafts each of which holds with probability a, the one at position i is kept with a^i, and a
step gives 1 + a + ... + a^k tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from atom.model_ops.backends.noise import GROUP
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.offline_engine import OfflineEngine
from tests.support.models.draft_checkpoints import WEIGHTS, make_eagle3, write_weights
from tests.support.models.tiny_model import make_tiny_checkpoint

DRAFTS, ROWS, TOKENS = 3, 32, 200


@pytest.mark.sampled(1)
@pytest.mark.parametrize("groups", [2, 3])
def test_acceptance_and_tokens_a_step_follow_the_formula(tmp_path: Path, groups: int) -> None:
    target = make_tiny_checkpoint(tmp_path / "llama", "llama", layers=7, seed=1)
    weights = load_file(target / WEIGHTS)
    write_weights(target, weights | {"lm_head.weight": weights["lm_head.weight"] * 0})
    vocabulary = len(weights["lm_head.weight"])
    draft = tmp_path / "eagle3"
    tensors = make_eagle3(draft, target, draft_vocabulary=groups * GROUP)
    for name in ("lm_head.weight", "d2t"):
        tensors[name] = torch.zeros_like(tensors[name])
    write_weights(draft, tensors)
    probability = groups * GROUP / vocabulary
    engine = OfflineEngine(
        str(target),
        speculative=SpeculativeConfig(
            method="eagle3", draft_model=str(draft), num_tokens=DRAFTS, adaptive=False
        ),
        max_model_len=256, max_num_seqs=ROWS, num_kv_blocks=ROWS * 16, max_num_batched_tokens=512,
    )  # fmt: skip
    prompts = np.random.default_rng(0)
    for seed in range(ROWS):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=TOKENS, ignore_eos=True)
        engine.add(engine.random_prompt(8, prompts), params)
    engine.run()
    stats = engine.scheduler.stats()
    engine.close()
    kept = np.array(stats.accepted_at_totals) / stats.drafts_total
    expected = probability ** np.arange(1, DRAFTS + 1)
    assert kept[0] == pytest.approx(probability, rel=0.05)
    assert kept == pytest.approx(expected, abs=0.025)  # three standard deviations
    length = 1 + stats.accepted_tokens_total / stats.drafts_total
    assert length == pytest.approx(1 + expected.sum(), rel=0.05)
