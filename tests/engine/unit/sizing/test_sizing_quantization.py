"""Every stored format by hand, and which matrices a checkpoint leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from atom.sizing import ModelFacts, Sharding
from atom.sizing.quantization import Quantization
from atom.sizing.quantization.config import read_quantization
from atom.sizing.quantization.scheme import QuantizationScheme


def scheme(**section: Any) -> QuantizationScheme:
    found = read_quantization({"quantization_config": section})
    assert found is not None
    return found


def read(**section: Any) -> Quantization:
    """The format of all matrices."""
    found = scheme(**section).default
    assert found is not None
    return found


def compressed(ignore: list[str] | None = None, **weights: Any) -> Quantization:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return read(quant_method="compressed-tensors", config_groups=groups, ignore=ignore or [])


def quark(**weight: Any) -> Quantization:
    return read(quant_method="quark", global_quant_config={"weight": weight})


def test_quark_says_whether_inputs_are_of_four_bits() -> None:
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
    for inputs, bits in ((None, 16), ({"dtype": "fp8_e4m3"}, 16), ({**weight}, 4)):
        of_all = {"weight": weight, "input_tensors": inputs}
        assert read(quant_method="quark", global_quant_config=of_all).input_bits == bits


def test_the_optimizer_names_modules_of_each_format() -> None:
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.experts": {"quant_algo": "nvfp4", "group_size": 16},
        "model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_NVFP4"},
    }
    excluded = ["lm_head", "model.layers.0.mlp.experts.3*"]
    found = scheme(
        quant_method="modelopt_mixed",
        quantization={
            "quant_algo": "MIXED_PRECISION", "exclude_modules": excluded, "quantized_layers": layers
        },
    )  # fmt: skip
    formats = {
        name: str(found.format_of(f"model.layers.{name}"))
        for name in (
            "0.self_attn.q_proj", "0.mlp.experts.7.up_proj", "0.mlp.experts.3.up_proj",
            "1.mlp.up_proj", "1.mlp.down_proj", "10.mlp.up_proj",
        )
    }  # fmt: skip
    nvfp4 = "NVFP4 converted to fp8 with a scale per output (modelopt)"
    assert formats == {
        "0.self_attn.q_proj": "fp8 with a scale per matrix (modelopt)",
        "0.mlp.experts.7.up_proj": nvfp4,
        "0.mlp.experts.3.up_proj": "None",
        "1.mlp.up_proj": nvfp4,
        "1.mlp.down_proj": "None",
        "10.mlp.up_proj": "None",
    }


@pytest.mark.parametrize(("algorithm", "group"), [("NVFP4", 16), ("MXFP8", 32)])
def test_ranks_hold_whole_groups_of_what_is_converted(algorithm: str, group: int) -> None:
    stored = read(quant_method="modelopt", quant_algo=algorithm)
    assert (stored.input_multiple, stored.output_multiple) == (group, 1)
    assert stored.matrix_bytes(256, 1024) == 256 * 1024 + 4 * 256


FORMATS: dict[str, tuple[Quantization, int]] = {
    # of 256 outputs and 1000 inputs
    "fp8 per tensor": (
        read(quant_method="fp8", activation_scheme="static"),
        256_000 + 256 * 4,  # matrices of one input are stored as one, so each output has its own
    ),
    "fp8 in blocks": (
        read(quant_method="fp8", weight_block_size=[128, 128]),
        256_000 + 2 * 8 * 4,
    ),
    "fp8 per row": (
        compressed(num_bits=8, type="float", strategy="channel"),
        256_000 + 256 * 4,
    ),
    "int8 per tensor": (
        compressed(num_bits=8, type="int", strategy="tensor"),
        256_000 + 256 * 4,
    ),
    "quark fp8 per row": (
        quark(dtype="fp8_e4m3", qscheme="per_channel"),
        256_000 + 256 * 4,
    ),
    "quark mxfp4": (
        quark(dtype="fp4", qscheme="per_group", group_size=32),
        128_000 + 256 * 32,
    ),
    "fbgemm": (read(quant_method="fbgemm_fp8"), 256_000 + 256 * 4),
    "compressed blocks": (
        compressed(num_bits=8, type="float", strategy="block", block_structure=[64, 128]),
        256_000 + 4 * 8 * 4,
    ),
    "int4 in groups of 32": (
        compressed(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True),
        128_000 + 256 * 32 * 2,
    ),
    "awq": (
        read(quant_method="awq", bits=4, group_size=128),
        128_000 + 256 * 8 * 2 + 256 * 8 // 2,
    ),
    "gptq": (
        read(quant_method="gptq", bits=4, group_size=128),
        128_000 + 256 * 8 * 2 + 256 * 8 // 2,
    ),
    "gptq in another order": (
        read(quant_method="gptq", bits=4, group_size=128, desc_act=True),
        128_000 + 256 * 8 * 2 + 256 * 8 // 2 + 1000 * 4,
    ),
    "gptq in one group": (
        read(quant_method="gptq", bits=4, group_size=-1),
        128_000 + 256 * 2 + 256 // 2,
    ),
    "mxfp4": (read(quant_method="mxfp4"), 128_000 + 256 * 32),
}


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_a_matrix(name: str) -> None:
    quantization, expected = FORMATS[name]
    assert quantization.matrix_bytes(256, 1000) == expected


def test_no_section_is_no_quantisation() -> None:
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("pattern", "module", "left"),
    [
        ("lm_head", "model.layers.0.mlp.up_proj", False),
        ("self_attn", "model.layers.3.self_attn.q_proj", True),
        ("gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.11.mlp.up_proj", False),
        ("model.layers.*.self_attn", "model.layers.11.self_attn.k_proj", True),
        ("model.layers.*.self_attn", "model.layers.11.mlp.up_proj", False),
        ("re:.*self_attn.*", "model.layers.0.self_attn.o_proj", True),
        (r"re:.*mlp\.(gate|up|down)_proj.*", "model.layers.0.mlp.up_proj", True),
        (r"re:.*mlp\.(gate|up|down)_proj.*", "model.layers.0.mlp.experts.0.up_proj", False),
    ],
)
def test_modules_are_left_alone_by_name(pattern: str, module: str, left: bool) -> None:
    found = scheme(quant_method="fp8", modules_to_not_convert=[pattern])
    assert (found.format_of(module) is None) is left


EXPERTS: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}


def parts(**section: Any) -> dict[str, int]:
    facts = ModelFacts.from_hf_config({**EXPERTS, "quantization_config": section or None})
    return {part.name: part.size_bytes for part in facts.weight_parts(None, Sharding(), False)}


def test_only_the_routed_experts_are_quantised_where_the_rest_is_ignored() -> None:
    plain = parts()
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    ignore = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    found = parts(
        quant_method="compressed-tensors",
        config_groups={"group_0": {"weights": weights}},
        ignore=ignore,
    )
    # 2 layers of 8 experts, three matrices of 128 x 256 each: half a byte, and 2 bytes for 32
    assert found.pop("routed experts") == 2 * 8 * 3 * (128 * 256 // 2 + 128 * 256 // 32 * 2)
    del plain["routed experts"]
    assert found == plain


def test_a_single_layer_that_is_left_alone_is_counted_as_such() -> None:
    all_layers = parts(quant_method="fp8", weight_block_size=[128, 128])
    but_one = parts(
        quant_method="fp8",
        weight_block_size=[128, 128],
        modules_to_not_convert=["model.layers.2.mlp.experts"],
    )
    experts = 8 * 3 * 128 * 256
    assert all_layers["routed experts"] == 2 * (experts + 8 * 3 * 2 * 4)
    assert but_one["routed experts"] == experts + 8 * 3 * 2 * 4 + 2 * experts
    assert but_one["attention"] == all_layers["attention"]
