"""What a config.json of Llama 4 says of its layers, and what of it is refused; no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.models.decoder.spec import ModelSpec
from atom.models.registry import model_spec
from atom.sizing import ModelFacts, ModelFactsError, tensor_parallel_problems
from atom.sizing.engine_support import unsupported
from atom.sizing.layers import Stacking
from atom.sizing.mask_rule import CAUSAL, chunked

CONFIG: dict[str, Any] = {
    "architectures": ["Llama4ForCausalLM"],
    "hidden_size": 96,
    "intermediate_size": 48,
    "intermediate_size_mlp": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 256,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
}


def spec_of(folder: Path, max_model_len: int = 1024, **changes: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    options = EngineOptions.of(model=str(folder), device="cpu", max_model_len=max_model_len)
    return model_spec(build_config(options).model)


def test_chunks_ropes_and_temperatures_of_layers(tmp_path: Path) -> None:
    layers = spec_of(tmp_path).layers
    assert [layer.attention.mask for layer in layers] == [chunked(256)] * 3 + [CAUSAL]
    assert [layer.rope.temperature is None for layer in layers] == [True, True, True, False]
    assert [layer.rope.rotary_dim for layer in layers] == [16, 16, 16, 0]
    assert [layer.head_norm is None for layer in layers] == [False, False, False, True]


def test_a_context_that_fits_one_chunk_is_attended_to_as_a_whole(tmp_path: Path) -> None:
    layers = spec_of(tmp_path, max_model_len=256).layers
    assert {layer.attention.mask for layer in layers} == {CAUSAL}


def test_a_rope_that_scales_attention_goes_without_norms_behind_it(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    with pytest.raises(ModelError, match="scales attention is not supported together with use_qk"):
        spec_of(tmp_path, rope_scaling=yarn)
    assert spec_of(tmp_path, rope_scaling=yarn, use_qk_norm=False).layers


def test_a_list_of_fewer_layers_is_refused() -> None:
    with pytest.raises(ModelFactsError, match="no_rope_layers names 3 layers"):
        ModelFacts.from_hf_config({**CONFIG, "no_rope_layers": [1, 0, 1]})


def test_ranks_that_do_not_divide_are_refused_with_the_sizes() -> None:
    problems = " ".join(tensor_parallel_problems(ModelFacts.from_hf_config(CONFIG), 5))
    assert "attention heads 6 is not divisible by 5" in problems
    assert "expert intermediate size 48 is not divisible by 5" in problems


def quantised(method: str, **section: Any) -> ModelFacts:
    return ModelFacts.from_hf_config(
        {**CONFIG, "quantization_config": {"quant_method": method, **section}}
    )


def test_what_quantises_decides_whether_experts_are_one_tensor() -> None:
    """FBGEMM keeps the stacks of the model's class, others make each expert's matrices modules."""
    assert quantised("fbgemm_fp8").experts_block.stacking is Stacking.SIDE_BY_SIDE
    for method in ("gptq", "awq"):
        facts = quantised(method, bits=4, group_size=16)
        assert facts.experts_block.stacking is Stacking.APART
        assert not unsupported(facts)


@pytest.mark.parametrize(
    ("method", "section"),
    [
        ("fp8", {"weight_block_size": [128, 128]}),
        ("mxfp4", {}),
        (
            "quark",
            {"global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                                     "input_tensors": {"dtype": "fp8_e4m3"}}},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_layouts_of_experts_that_nobody_publishes_are_refused(
    method: str, section: dict[str, Any]
) -> None:
    (reason,) = unsupported(quantised(method, **section))
    assert reason.field == "quantization_config"
    assert "in one tensor (which are: fbgemm_fp8, compressed-tensors, awq, gptq)" in reason.message
    assert "--quantization" in reason.message


def test_a_format_of_weights_alone_in_eight_bits_is_refused() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    (reason,) = unsupported(quantised("compressed-tensors", config_groups=groups))
    assert "is to be multiplied with 16-bit inputs" in reason.message
