"""Whole engines over a mixture in eight bits: with Triton's kernels of one token greedy tokens are
the reference's, which does not round activations either."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom.model_ops.backends.triton_ops import backend as triton
from tests.engine.integration.models.test_quantised_checkpoints import DEEPSEEK, QWEN_EXPERTS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import Architecture

NEW_TOKENS = 2
# And what is fused of these.
_OPS = ("prepare_linear", "prepare_experts", "linear", "norm", "act_and_mul", "route", "experts")


@pytest.mark.parametrize(
    ("layout", "family", "extra"),
    [
        ("fp8-blocks", "qwen3_moe", QWEN_EXPERTS),
        ("compressed-fp8-rows", "deepseek3", DEEPSEEK),
    ],
)
def test_greedy_tokens_are_the_references(
    tmp_path: Path, device: torch.device, layout: str, family: Architecture, extra: dict[str, int]
) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS[layout], family, extra=extra)
    asked, answers = [[7]], []  # one token, so that every step has one
    for chosen in (triton().name, "torch_ref"):
        driver = CoreDriver(
            str(quantised),
            device=device.type,
            max_num_batched_tokens=48,
            max_num_seqs=1,
            op_backends=dict.fromkeys(_OPS, chosen),
        )
        answers.append(driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True))
    assert answers[0] == answers[1]
