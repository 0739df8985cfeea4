"""Checkpoints whose layers are stored in several formats: greedy tokens equal transformers' on what
their codes stand for, and the plan counts what is loaded, for each writer's way to name modules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atom.checkpoint import open_checkpoint
from atom.errors import ModelError
from atom.sizing import ModelFacts
from tests.engine.integration.models.test_quantised_checkpoints import NEW_TOKENS, oracle, prompts
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.quantised_checkpoint import (
    LAYOUTS,
    Layout,
    gptq,
    make_quantised_checkpoint,
)

_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_DYNAMIC = {"num_bits": 8, "dynamic": True}
_QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
_QUARK_FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}


def _groups(**groups: dict[str, Any]) -> dict[str, Any]:
    return {"config_groups": groups, "format": "mixed-precision"}


def _quark(weight: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"weight": weight, "input_tensors": {**weight, "is_dynamic": True}, **more}


@dataclass(frozen=True)
class Mixed:
    """layout: of all that `others` does not name by a part; says: of quantization_config."""

    layout: str
    others: dict[str, Layout | None]
    says: dict[str, Any]


_WIDE_GROUPS = Layout(LAYOUTS["gptq"].config, lambda x: gptq(x, group=64))
MIXED: dict[str, Mixed] = {
    "gptq-dynamic-leaves-a-layer": Mixed(
        "gptq", {"layers.0.": None}, {"dynamic": {r"-:.*layers\.0\..*": {}}}
    ),
    "gptq-dynamic-group-size": Mixed(
        "gptq",
        {"down_proj": _WIDE_GROUPS},
        {"dynamic": {r"+:.*\.down_proj": {"bits": 4, "group_size": 64}}},
    ),
    "gptq-dynamic-first-match-counts": Mixed(
        "gptq",
        {"layers.1.mlp.down_proj": None, "down_proj": _WIDE_GROUPS},
        {"dynamic": {r"-:.*\.1\.mlp\.down": {}, r".*\.down_proj": {"group_size": 64}}},
    ),
    "gptq-names-what-is-quantised": Mixed(
        "gptq",
        {"self_attn": None},
        {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
    ),
    "awq-part-of-a-name-with-its-dot": Mixed(
        "awq", {"layers.0.": None}, {"modules_to_not_convert": ["layers.0."]}
    ),
    "awq-part-of-a-word-that-is-quantised-all-the-same": Mixed(
        "awq", {"mlp.gate.": None}, {"modules_to_not_convert": ["gate", "o_pro", "layers.1"]}
    ),
    "awq-part-of-a-word": Mixed("awq", {"o_proj": None}, {"modules_to_not_convert": ["o_pro"]}),
    "compressed-groups-by-expression": Mixed(
        "compressed-int8",
        {"self_attn": LAYOUTS["compressed-fp8-rows"]},
        _groups(
            attention={
                "targets": ["re:.*self_attn.*"],
                "format": "float-quantized",
                "weights": _FP8,
                "input_activations": _DYNAMIC,
            },
            rest={
                "targets": ["Linear"],
                "format": "int-quantized",
                "weights": _INT8,
                "input_activations": _DYNAMIC,
            },
        ),
    ),
    "compressed-groups-by-name-without-a-default": Mixed(
        "compressed-int4",
        {"self_attn": None, "down_proj": LAYOUTS["compressed-int8"]},
        _groups(
            inner={
                "targets": ["re:.*(gate|up)_proj"],
                "format": "pack-quantized",
                "weights": {**_INT4, "symmetric": True},
            },
            outer={
                "targets": [f"model.layers.{index}.mlp.down_proj" for index in range(4)],
                "format": "int-quantized",
                "weights": _INT8,
                "input_activations": _DYNAMIC,
            },
        ),
    ),
    "quark-cache-scales-by-layer": Mixed(  # as AMD's *-FP8-KV checkpoints have them
        "quark-fp8",
        {},
        {
            "layer_quant_config": {
                name: _quark(_QUARK_FP8, output_tensors=_QUARK_FP8)
                for name in ("*k_proj", "*v_proj")
            }
        },
    ),
    "quark-attention-in-another-format": Mixed(
        "quark-mxfp4",
        {"self_attn": LAYOUTS["quark-fp8"]},
        {"layer_quant_config": {"*self_attn*": _quark(_QUARK_FP8)}},
    ),
    "quark-a-layer-plain": Mixed(
        "quark-fp8",
        {"layers.1.mlp": None},
        {"layer_quant_config": {"model.layers.1.mlp*": {"weight": None}}},
    ),
    "fp8-ignored-layers": Mixed(
        "fp8-tensor", {"layers.0.mlp": None}, {"ignored_layers": ["lm_head", "model.layers.0.mlp"]}
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_greedy_tokens_equal_transformers_and_bytes_the_plan(tmp_path: Path, name: str) -> None:
    mixed = MIXED[name]
    quantised, plain = make_quantised_checkpoint(
        tmp_path, LAYOUTS[mixed.layout], others=mixed.others, **mixed.says
    )
    driver = CoreDriver(str(quantised), max_num_seqs=8, max_num_batched_tokens=48)
    asked = prompts(driver.vocab_size)
    got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == oracle(plain).answers(got)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gptq-eight-bits": ("gptq", {"dynamic": {".*down.*": {"bits": 8}}}, "8 bits"),
    "gptq-unknown-override": ("gptq", {"dynamic": {".*": {"adapter": 1}}}, "adapter"),
    "gptq-no-expression": ("gptq", {"dynamic": {"-:*(": {}}}, "no regular expression"),
    "gptq-looks-behind": ("gptq", {"dynamic": {"-:.*(?<!a)x": {}}}, "searched in linear time"),
    "gptq-many-rules": (
        "gptq",
        {"dynamic": {f"-:layer{number}": {} for number in range(5000)}},
        "5000 rules by name",
    ),
    "gptq-marlin": ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    "gptq-head": ("gptq", {"lm_head": True}, "lm_head"),
    "fp8-e5m2": ("fp8-blocks", {"fmt": "e5m2"}, "fmt 'e5m2'"),
    "compressed-turned": ("compressed-int8", {"transform_config": {"R1": {}}}, "transform_config"),
    "compressed-class": (
        "compressed-int8",
        {"config_groups": {"g": {"targets": ["Embedding"], "weights": _INT8}}},
        "Embedding",
    ),
    "quark-by-class": (
        "quark-fp8",
        {"layer_type_quant_config": {"Linear": _quark(_QUARK_FP4)}},
        "layer_type_quant_config",
    ),
    "one-product": (
        "quark-fp8",
        {"layer_quant_config": {"*.mlp.gate_proj": {"weight": None}}},
        "which are one product here",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path, name: str) -> None:
    layout, says, words = REFUSED[name]
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS[layout], **says)
    with pytest.raises(ModelError, match=words):
        CoreDriver(str(quantised), max_num_seqs=8)


def test_experts_of_a_layer_are_of_one_format(tmp_path: Path) -> None:
    extra = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    quantised, _ = make_quantised_checkpoint(
        tmp_path,
        LAYOUTS["gptq"],
        "qwen3_moe",
        extra=extra,
        dynamic={r"-:.*experts\.2\..*": {}},
    )
    with pytest.raises(ModelError, match=r"experts\.2\.gate_proj as plain; experts of a layer"):
        CoreDriver(str(quantised), max_num_seqs=8)


def test_the_plan_counts_each_matrix_in_its_own_format(tmp_path: Path) -> None:
    mixed = MIXED["gptq-dynamic-leaves-a-layer"]
    sizes = []
    for number, says in enumerate(({}, mixed.says)):
        quantised, _ = make_quantised_checkpoint(
            tmp_path / str(number), LAYOUTS["gptq"], others=mixed.others if says else None, **says
        )
        facts = ModelFacts.from_hf_config(open_checkpoint(quantised).config)
        config = json.loads((quantised / "config.json").read_text())
        sizes.append((facts.weight_bytes(), config["num_hidden_layers"]))
    (quantised_bytes, layers), (mixed_bytes, _) = sizes
    config["quantization_config"] = None
    plain_bytes = ModelFacts.from_hf_config(config).weight_bytes()
    assert mixed_bytes - quantised_bytes == (plain_bytes - quantised_bytes) // layers
