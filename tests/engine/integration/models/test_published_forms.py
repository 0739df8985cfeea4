"""Quantised checkpoints of every family, in every form and as they are published, compute what
transformers does with the values that their codes stand for.

In the daily run each family has one form, in turn; the whole product is the long run's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.errors import ModelError
from atom.model_ops.embed_head import ParallelLMHead
from atom.sizing import ModelFacts, ModelFactsError, unsupported
from atom.speculative_config import SpeculativeConfig
from tests.engine.speculation.test_draft_models import run
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.published_forms import (
    FAMILIES,
    FORMS,
    NAMED_SO,
    OLDER,
    SHAPES,
    make_published_form,
)
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

NEW_TOKENS = 4
OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "block_size": 16}
PAIRS = [(family, form) for family in (*FAMILIES, *SHAPES, *OLDER) for form in FORMS]
# Of each family one: as it is published, where that is in a way of its own, or the next form.
DAILY = {
    family: next((form for named, form in NAMED_SO if named == family), list(FORMS)[turn % 12])
    for turn, family in enumerate((*FAMILIES, *SHAPES))
}
# A family of each kind of layers that ranks share, and a form whose groups halve.
SHARED = {
    "Qwen3-Next": "gptq", "Qwen3.5 (experts)": "quark-mxfp4",
    "Kimi Linear": "compressed-fp8-rows", "Granite 4": "compressed-fp8-rows",
    "Nemotron-H": "modelopt-fp8", "LFM2 (experts)": "awq", "MiMo-V2-Flash": "compressed-int8",
    "MiniMax-M2": "gptq", "GLM-5": "compressed-mxfp4", "Phi-3 and Phi-4": "compressed-int4",
    "Qwen3-MoE": "modelopt-nvfp4", "DeepSeek V3, R1 and Kimi-K2": "compressed-nvfp4",
}  # fmt: skip
DRAFTING = [family for family, kind in FAMILIES.items() if kind.add_mtp is not None]


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All that the engine computes from here on."""
    seen: list[torch.Tensor] = []
    compute = ParallelLMHead.forward

    def recorded(head: ParallelLMHead, hidden: torch.Tensor) -> torch.Tensor:
        result = compute(head, hidden)
        seen.append(result.clone())
        return result

    monkeypatch.setattr(ParallelLMHead, "forward", recorded)
    return seen


def some_prompt(vocab_size: int) -> list[int]:
    draw: list[int] = np.random.default_rng(3).integers(3, vocab_size, size=60).tolist()
    return draw


def assert_logits_equal(engine: Path, plain: Path, seen: list[torch.Tensor]) -> None:
    driver = CoreDriver(str(engine), **OPTIONS)
    prompt = some_prompt(driver.vocab_size)
    (new,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt + new])).logits[0, :-1]
    assert (torch.cat(seen) - expected).abs().max() <= 1e-4
    assert expected.std() > 0.5, "logits that are all alike say nothing"


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("family", "form"),
    [
        pytest.param(*pair, marks=() if DAILY.get(pair[0]) == pair[1] else pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_logits_are_those_of_what_the_codes_stand_for(
    tmp_path: Path, logits: list[torch.Tensor], family: str, form: str
) -> None:
    assert_logits_equal(*make_published_form(tmp_path, family, form), logits)


@pytest.mark.parametrize("online", [None, "fp8"])
def test_plain_experts_are_found_in_one_tensor_too(
    tmp_path: Path, logits: list[torch.Tensor], online: str | None
) -> None:
    """As Qwen3.5's plain checkpoints have them; transformers writes each apart."""
    plain = make_tiny_checkpoint(tmp_path / "plain", "qwen3_5_moe")
    stacked = make_tiny_checkpoint(tmp_path / "stacked", "qwen3_5_moe")
    stack_experts(stacked / "model.safetensors")
    if online is None:
        assert_logits_equal(stacked, plain, logits)
        return
    answers = []
    for folder in (stacked, plain):
        driver = CoreDriver(str(folder), quantization=online, **OPTIONS)
        prompt = some_prompt(driver.vocab_size)
        answers.append(driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True))
    assert answers[0] == answers[1]


def stack_experts(file: Path) -> None:
    tensors = load_file(file)
    blocks = {name.partition("experts.")[0] for name in tensors if ".experts." in name}
    assert blocks
    for block in blocks:
        gates, ups, downs = (
            [tensors.pop(f"{block}experts.{number}.{part}_proj.weight") for number in range(8)]
            for part in ("gate", "up", "down")
        )
        fused = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        tensors[f"{block}experts.gate_up_proj"] = torch.stack(fused)
        tensors[f"{block}experts.down_proj"] = torch.stack(downs)
    save_file(tensors, file, metadata={"format": "pt"})


def test_experts_that_are_in_neither_are_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3_5_moe")
    stack_experts(folder / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"8 tensors .* first model\.layers\.1\.mlp\.experts\.0\."):
        CoreDriver(str(folder), **OPTIONS)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", SHARED)
def test_two_ranks_say_what_one_does(tmp_path: Path, pair: RankGroup, family: str) -> None:
    folder, plain = make_published_form(tmp_path, family, SHARED[family])
    alone = CoreDriver(str(plain), **OPTIONS)
    asked = [some_prompt(alone.vocab_size)]
    expected = alone.generate(asked, max_tokens=12, ignore_eos=True)
    together = pair.driver(str(folder), **OPTIONS)
    found = together.generate(asked, max_tokens=12, ignore_eos=True)
    together.close()
    assert found == expected


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=() if each == "Qwen3.5" else pytest.mark.slow) for each in DRAFTING],
)
def test_layers_that_draft_are_read_in_the_form(tmp_path: Path, family: str) -> None:
    """What they make of tokens is what those of the plain checkpoint make, which is held against
    transformers elsewhere."""
    folders = make_published_form(tmp_path, family, "fp8-blocks")
    asked = SpeculativeConfig(method="mtp", num_tokens=2, adaptive=False)
    (tokens, seen), (expected, wanted) = (run(each, asked, [5, 7, 9] * 9) for each in folders)
    assert tokens == expected
    assert seen.drafts == wanted.drafts
    assert seen.hidden.keys() == wanted.hidden.keys()
    for position, hidden in seen.hidden.items():
        assert (hidden - wanted.hidden[position]).abs().max() <= 1e-4


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "NVFP4 with factors of inputs": (
        "Nemotron-H", {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
        "modelopt of quant_algo 'NVFP4_AWQ', since inputs are to be multiplied with",
    ),
    "NVFP4 in other groups": (
        "Nemotron-H", {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32},
        "modelopt of quant_algo 'NVFP4' in groups of 32 inputs (it has groups of 16)",
    ),
    "NVFP4 of compressed-tensors in other groups": (
        "Kimi Linear",
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "format": "nvfp4-pack-quantized", "targets": ["Linear"],
            "weights": {**_NVFP4, "group_size": 32},
        }}},
        "weights of 4 bits, type float, strategy tensor_group, group_size 32",
    ),
    "mixed formats without their modules": (
        "Nemotron-H", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        "modelopt of quant_algo 'MIXED_PRECISION' without quantized_layers",
    ),
    "experts of Granite 4 in NVFP4": (
        "Granite 4",
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": _NVFP4}}},
        "none of this model's experts in one tensor",
    ),
    "8 bits in groups": (
        "MiniMax-M2",
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**_INT4, "num_bits": 8}},
        }},
        "weights of 8 bits, type int, strategy group",
    ),
    "8 bits of GPTQ": (
        "Qwen3.5 (experts)", {"quant_method": "gptq", "bits": 8}, "gptq with 8 bits"
    ),
    "AutoRound's own": (
        "MiniMax-M2", {"quant_method": "auto-round", "bits": 4}, "quant_method 'auto-round'"
    ),
    "experts of Granite 4 in int4": (
        "Granite 4",
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": _INT4},
        }},
        "none of this model's experts in one tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_not_computed_are_refused_by_name(tmp_path: Path, name: str) -> None:
    family, section, said = REFUSED[name]
    folder = make_tiny_checkpoint(tmp_path, FAMILIES[family].architecture)  # type: ignore[arg-type]
    config = json.loads((folder / "config.json").read_text())
    try:
        facts = ModelFacts.from_hf_config({**config, "quantization_config": section})
    except ModelFactsError as error:
        words = str(error)
    else:
        words = "; ".join(each.message for each in unsupported(facts))
    assert said in words
    assert "supported" in words or "known" in words
