"""Whole engines over 4-bit checkpoints: with Triton's products greedy tokens are transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom.model_ops.backends.triton_ops import backend as triton
from tests.engine.integration.models.test_quantised_checkpoints import QWEN_EXPERTS, oracle, prompts
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint

NEW_TOKENS = 2


@pytest.mark.parametrize("layout", ["awq", "gptq-ordered", "quark-mxfp4"])
def test_greedy_tokens_are_transformers(tmp_path: Path, device: torch.device, layout: str) -> None:
    quantised, plain = make_quantised_checkpoint(tmp_path, LAYOUTS[layout], "llama")
    driver = CoreDriver(
        str(quantised),
        device=device.type,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        op_backends=dict.fromkeys(("prepare_linear", "linear"), triton().name),
    )
    asked = prompts(driver.vocab_size)
    answers = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert answers == oracle(plain, NEW_TOKENS).answers(answers)


def test_greedy_tokens_of_experts_whose_inputs_are_ordered(
    tmp_path: Path, device: torch.device
) -> None:
    quantised, plain = make_quantised_checkpoint(
        tmp_path, LAYOUTS["gptq-ordered"], "qwen3_moe", extra=QWEN_EXPERTS
    )
    driver = CoreDriver(
        str(quantised),
        device=device.type,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        op_backends=dict.fromkeys(("prepare_experts", "experts"), triton().name),
    )
    assert driver.report.backends["experts"] == "triton"
    answers = driver.generate(prompts(driver.vocab_size), max_tokens=NEW_TOKENS, ignore_eos=True)
    assert answers == oracle(plain, NEW_TOKENS).answers(answers)
