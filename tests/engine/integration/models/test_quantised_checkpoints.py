"""Greedy tokens of a checkpoint in every layout equal transformers' on what its codes stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from atom.errors import ModelError
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.greedy_oracle import GreedyAnswers
from tests.support.models.quantised_checkpoint import (
    CONVERTED,
    GPT_OSS_LAYOUT,
    LAYOUTS,
    make_quantised_checkpoint,
)
from tests.support.models.tiny_model import Architecture

NEW_TOKENS = 8
# About to need another block, and across chunks of 48 tokens.
PROMPT_LENGTHS = (15, 14, 31, 46, 100)
_FAMILIES = {"awq": "llama", "compressed-int8": "llama", "fbgemm": "llama", "quark-mxfp4": "llama"}
BACKENDS = ("auto", "torch_ref")
# Of the layouts that are converted at load, the first is daily; ranks and experts have others.
DAILY = [
    pytest.param(name, marks=pytest.mark.slow if name in [*CONVERTED][1:] else (), id=name)
    for name in LAYOUTS
]


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, vocab_size, size=n).tolist() for n in PROMPT_LENGTHS]


def oracle(plain: Path, count: int = NEW_TOKENS) -> GreedyAnswers:
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    return GreedyAnswers(model, prompts(model.config.vocab_size), count)


@pytest.fixture(scope="module", params=DAILY)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, GreedyAnswers]:
    name = request.param
    quantised, plain = make_quantised_checkpoint(
        tmp_path_factory.mktemp(name), LAYOUTS[name], _FAMILIES.get(name, "qwen3")
    )
    return quantised, oracle(plain)


@pytest.mark.parametrize("layout", DAILY)
def test_plain_weights_below_a_quantised_config_are_refused(layout: str, tmp_path: Path) -> None:
    quantised, plain = make_quantised_checkpoint(tmp_path, LAYOUTS[layout])
    (quantised / "model.safetensors").write_bytes((plain / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"model|tensors"):
        CoreDriver(str(quantised), max_num_batched_tokens=48, max_num_seqs=8)


@pytest.mark.singles
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=() if name in ("fp8-blocks", "gptq-ordered") else pytest.mark.slow)
        for name in LAYOUTS
    ],
)
def test_fused_matrices_are_taken_apart(tmp_path: Path, layout: str, backend: str) -> None:
    folder, plain = make_quantised_checkpoint(tmp_path, LAYOUTS[layout], "phi3")
    driver = CoreDriver(str(folder), max_num_batched_tokens=48, max_num_seqs=8, backend=backend)
    asked = prompts(driver.vocab_size)
    got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == oracle(plain).answers(got)


@pytest.mark.sampled(9)
@pytest.mark.singles
@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_tokens_equal_transformers_with_chunks_and_a_cached_prefix(
    checkpoint: tuple[Path, GreedyAnswers], backend: str
) -> None:
    folder, expected = checkpoint
    driver = CoreDriver(str(folder), max_num_batched_tokens=48, max_num_seqs=8, backend=backend)
    asked = prompts(driver.vocab_size)
    for _ in range(2):  # the second time with what is cached
        got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == expected.answers(got)
    assert driver.scheduler.stats().cached_tokens_total > 0


def test_preempted_sequences_give_the_same_tokens(
    checkpoint: tuple[Path, GreedyAnswers],
) -> None:
    folder, expected = checkpoint
    driver = CoreDriver(
        str(folder),
        max_model_len=64,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        num_kv_blocks=8,
        enable_prefix_caching=False,
    )
    some = prompts(driver.vocab_size)[:-1]  # whose blocks there are, but for their next ones
    got = driver.generate(some, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == expected.answers(got)[:-1]
    assert driver.scheduler.stats().preemptions_total > 0


@pytest.mark.parametrize("leave", ["mlp", "layers.0.self_attn", "down_proj"])
def test_what_is_not_to_be_converted_stays_plain(tmp_path: Path, leave: str) -> None:
    quantised, plain = make_quantised_checkpoint(
        tmp_path, LAYOUTS["fp8-blocks"], leave=leave, modules_to_not_convert=["lm_head", leave]
    )
    driver = CoreDriver(str(quantised), max_num_seqs=8)
    asked = prompts(driver.vocab_size)
    got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == oracle(plain).answers(got)


@pytest.mark.slow  # daily in the forms in which they are published
@pytest.mark.parametrize("layout", ["fp8-blocks", "compressed-fp8-rows"])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_states_of_matrices_in_a_format(tmp_path: Path, family: Architecture, layout: str) -> None:
    """What says how much a head learns and forgets stays plain, as in published checkpoints. Heads
    whose rows change places end within blocks here, and at the ends of blocks in published ones."""
    plain_ones = ["lm_head", "in_proj_ba", "in_proj_b", "in_proj_a"]
    names = [
        f"model.layers.{layer}.linear_attn.{name}" for layer in range(4) for name in plain_ones
    ]
    key = "modules_to_not_convert" if layout == "fp8-blocks" else "ignore"
    quantised, plain = make_quantised_checkpoint(
        tmp_path, LAYOUTS[layout], family, sizes={"layers": 4}, **{key: ["lm_head", *names]}
    )
    expected = oracle(plain)
    for backend in BACKENDS:
        driver = CoreDriver(
            str(quantised), max_num_batched_tokens=48, max_num_seqs=8, backend=backend
        )
        asked = prompts(driver.vocab_size)
        got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == expected.answers(got)


QWEN_EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}  # fmt: skip
# The latent's matrix is stored in the format and multiplied with in halves, head by head.
DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4,
    "topk_group": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip

GPT_OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24}


@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_in_one_tensor(tmp_path: Path, backend: str) -> None:
    quantised, plain = make_quantised_checkpoint(
        tmp_path, GPT_OSS_LAYOUT, "gpt_oss", leave="self_attn", extra=GPT_OSS
    )
    driver = CoreDriver(str(quantised), max_num_batched_tokens=48, max_num_seqs=8, backend=backend)
    asked = prompts(driver.vocab_size)
    got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == oracle(plain).answers(got)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("layout", "family", "extra"),
    [
        ("fp8-blocks", "qwen3_moe", QWEN_EXPERTS),
        ("compressed-fp8-rows", "qwen3_moe", QWEN_EXPERTS),
        ("compressed-int8", "qwen3_moe", QWEN_EXPERTS),
        ("quark-mxfp4", "qwen3_moe", QWEN_EXPERTS),
        ("compressed-int4-zeros", "qwen3_moe", QWEN_EXPERTS),
        ("gptq-ordered", "qwen3_moe", QWEN_EXPERTS),
        ("modelopt-nvfp4", "qwen3_moe", QWEN_EXPERTS),
        ("compressed-nvfp4", "deepseek3", DEEPSEEK),
        ("fp8-blocks", "deepseek3", DEEPSEEK),
        ("compressed-fp8-rows", "deepseek3", DEEPSEEK),
    ],
)
def test_experts_and_latents_in_a_format(
    tmp_path: Path, layout: str, family: Architecture, extra: dict[str, int]
) -> None:
    quantised, plain = make_quantised_checkpoint(tmp_path, LAYOUTS[layout], family, extra=extra)
    expected = oracle(plain)
    for backend in BACKENDS:
        driver = CoreDriver(
            str(quantised), max_num_batched_tokens=48, max_num_seqs=8, backend=backend
        )
        asked = prompts(driver.vocab_size)
        got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == expected.answers(got)
