"""DeepSeek V4 in the formats of its published checkpoints: matrices in fp8, experts in fp4 or fp8,
scales under names of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.errors import AtomError
from atom.models.decoder.causal_lm import held_bytes
from atom.sizing import ModelFacts, rotary_bytes
from tests.engine.integration.models.test_deepseek_v4 import (
    NEW_TOKENS,
    PROMPTS,
    WEIGHTS,
    changed_config,
    made,
    publish,
    tokens_of,
    transformers_tokens,
    unit_norms,
)
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.greedy_oracle import GreedyAnswers
from tests.support.models.published_deepseek_v4 import FLASH, PRO, QUANTISED, quantised
from tests.support.ranks.rank_group import RankGroup

EXPONENTS = torch.float8_e8m0fnu
# Flash and Pro have the first, Flash-Base the second.
FORMATS = {
    "as published": ("fp4", (128, 128), EXPONENTS),
    "of base models": ("fp8", (128, 128), torch.float32),
}


@pytest.mark.parametrize("case", FORMATS)
def test_published_formats_give_the_tokens_of_what_they_stand_for(
    tmp_path: Path, case: str
) -> None:
    plain = made(tmp_path / "plain")
    publish(plain)
    stored, meant = quantised(plain, *FORMATS[case])
    told = tokens_of(stored)
    assert told == transformers_tokens(meant, told)


def test_two_ranks_read_the_numbers_that_transformers_reads(tmp_path: Path) -> None:
    """Of the written files themselves, whose names and packing transformers knows."""
    plain = made(tmp_path / "plain")
    publish(plain)
    stored, _ = quantised(plain, "fp4", (4, 4), EXPONENTS)
    said = transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=(4, 4))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        stored, dtype=torch.float32, quantization_config=said
    )
    ranks = RankGroup(2)
    try:
        driver = ranks.driver(str(stored), max_num_batched_tokens=48, max_num_seqs=8)
        told = driver.generate(PROMPTS, max_tokens=NEW_TOKENS, ignore_eos=True)
        driver.close()
    finally:
        ranks.close()
    assert GreedyAnswers(model, PROMPTS, NEW_TOKENS).answers(told) == told


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_the_tensors_of_the_files_are_planned_to_the_byte(tmp_path: Path, experts: str) -> None:
    plain = made(tmp_path / "plain")
    publish(plain)
    stored, _ = quantised(plain, experts, (128, 128), torch.float32)
    planned = ModelFacts.from_hf_config(json.loads((stored / "config.json").read_text()))
    size_bytes = 0
    for name, tensor in load_file(stored / WEIGHTS).items():
        if ".wo_a." in name:  # is dequantised at load, to float32
            size_bytes += tensor.numel() * 4 if name.endswith("weight") else 0
        elif not name.startswith("mtp."):
            size_bytes += tensor.nbytes
    assert planned.weight_bytes() == size_bytes


def test_a_cpu_holds_the_matrices_plain(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain")
    publish(plain)
    stored, _ = quantised(plain, "fp4", (128, 128), EXPONENTS)
    facts = ModelFacts.from_hf_config(json.loads((stored / "config.json").read_text()))
    driver = CoreDriver(str(stored), max_model_len=256)
    model = driver.executor.runner._model  # type: ignore[attr-defined]
    expanded = ModelFacts.from_hf_config(json.loads((plain / "config.json").read_text()))
    assert held_bytes(model) == expanded.weight_bytes() + rotary_bytes(facts, 256) + unit_norms(
        facts
    )
    assert facts.weight_bytes() < expanded.weight_bytes()


@pytest.mark.parametrize(
    ("config", "parameters", "gib"), [(FLASH, 284e9, 147), (PRO, 1.6e12, 796)], ids=["flash", "pro"]
)
def test_published_models_are_planned_in_their_formats(
    config: dict[str, object], parameters: float, gib: int
) -> None:
    """Their model cards tell the parameters."""
    plain = ModelFacts.from_hf_config(config)
    assert plain.weight_bytes() / 2 == pytest.approx(parameters, rel=0.02)
    stored = ModelFacts.from_hf_config(
        {**config, "quantization_config": QUANTISED, "expert_dtype": "fp4"}
    )
    assert round(stored.weight_bytes() / 2**30) == gib


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("expert_dtype", "fp8 with expert_dtype 'fp6' cannot be sized"),
        ("scale", r"1 tensors of the model are in none .* first .*layers.0.attn.wq_a.weight_scale"),
        ("experts in fp8", r"experts.0.gate_proj.* has shape \[128, 2\], .* calls for \[1, 1\]"),
        ("another method", "quantised by the method quark is not supported; supported: fp8"),
    ],
)
def test_a_broken_format_is_refused_by_name(tmp_path: Path, place: str, message: str) -> None:
    plain = made(tmp_path / "plain")
    publish(plain)
    stored, _ = quantised(plain, "fp4", (128, 128), EXPONENTS)
    weight = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
    quark = {"weight": weight, "input_tensors": weight}
    changes = {
        "expert_dtype": {"expert_dtype": "fp6"},
        "scale": {},
        "experts in fp8": {"expert_dtype": None},
        "another method": {
            "quantization_config": {"quant_method": "quark", "global_quant_config": quark}
        },
    }[place]
    changed_config(stored, lambda config: config.update(changes))
    if place == "scale":
        tensors = load_file(stored / WEIGHTS)
        del tensors["layers.0.attn.wq_a.scale"]
        save_file(tensors, stored / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(AtomError, match=message):
        CoreDriver(str(stored))
