"""ModelFacts reads config.json and counts parameters exactly."""

from __future__ import annotations

from typing import Any

import pytest

from atom.sizing import ModelFacts, ModelFactsError, UnknownFamilyError, unsupported
from atom.sizing.attention.kinds import GroupedAttention
from tests.support.models.parameter_count import parameter_count

QWEN3_TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LLAMA_TINY: dict[str, Any] = {
    **{key: value for key, value in QWEN3_TINY.items() if key != "head_dim"},
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("base", [QWEN3_TINY, LLAMA_TINY], ids=["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parameter_count_equals_the_real_module(
    base: dict[str, Any], tied: bool, bias: bool
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    config = {**base, "tie_word_embeddings": tied, "attention_bias": bias}
    if base is LLAMA_TINY:
        config["mlp_bias"] = bias
    arguments = {key: value for key, value in config.items() if key != "torch_dtype"}
    kind = "Qwen3" if base is QWEN3_TINY else "Llama"
    oracle_config = getattr(transformers, f"{kind}Config")(**arguments)
    with torch.device("meta"):
        module = getattr(transformers, f"{kind}ForCausalLM")(oracle_config)
    module.tie_weights()
    expected = sum(parameter.numel() for parameter in module.parameters())
    assert parameter_count(ModelFacts.from_hf_config(config)) == expected


def test_llama_3_1_8b_has_its_published_size() -> None:
    facts = ModelFacts.from_hf_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
        }
    )
    assert parameter_count(facts) == 8_030_261_248
    assert facts.layers[0].attention.head_dim == 128
    assert facts.weight_bytes() == 16_060_522_496


def head_dim(config: dict[str, Any]) -> int:
    return ModelFacts.from_hf_config(config).layers[0].attention.head_dim


def test_head_dim_absent_means_what_transformers_makes_of_it() -> None:
    assert head_dim(LLAMA_TINY) == 48 // 6
    without = {key: value for key, value in QWEN3_TINY.items() if key != "head_dim"}
    assert head_dim(without) == 128


@pytest.mark.parametrize(
    ("change", "expected_bytes"),
    [
        ({}, 2),
        ({"torch_dtype": None, "dtype": "float16"}, 2),
        ({"torch_dtype": "torch.float32"}, 4),
        ({"torch_dtype": None}, 4),
    ],
)
def test_element_size_is_read_from_either_dtype_key(
    change: dict[str, Any], expected_bytes: int
) -> None:
    assert ModelFacts.from_hf_config({**QWEN3_TINY, **change}).weight_dtype_bytes == expected_bytes


def test_norms_are_replicated_and_kv_heads_replicate_beyond_their_number() -> None:
    facts = ModelFacts.from_hf_config(LLAMA_TINY)
    attention = facts.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    assert [attention.heads.kv_per_rank(size) for size in (1, 2, 4)] == [2, 1, 1]
    replicated = (2 * facts.num_layers + 1) * facts.hidden_size
    whole, half = facts.weight_bytes(1), facts.weight_bytes(1, tensor_parallel=2)
    assert 2 * half == whole + replicated


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"use_sliding_window": True, "layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "quantization_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
    ],
)
def test_an_unusable_config_is_refused_by_the_name_of_its_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelFactsError) as caught:
        ModelFacts.from_hf_config({**QWEN3_TINY, **change})
    assert caught.value.field == field
    assert field in str(caught.value) or "architecture" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "rope_scaling", "'mrope'"),
        ({"rope_scaling": {"type": "xpos"}}, "rope_scaling", "default, linear, dynamic"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope_scaling", "'ntk'"),
        ({"hidden_act": "gelu"}, "hidden_act", "silu"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "a": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
                    },
                }
            },
            "quantization_config",
            "plain one with --quantization",
        ),
    ],
)
def test_what_the_engine_does_not_run_has_a_size_and_a_refusal_by_name(
    change: dict[str, Any], field: str, words: str
) -> None:
    facts = ModelFacts.from_hf_config({**QWEN3_TINY, **change})
    assert facts.weight_bytes() > 0
    (refusal,) = unsupported(facts)
    assert refusal.field == field
    assert words in refusal.message
    assert unsupported(facts, ["Qwen3ForCausalLM"]) == ()
    assert unsupported(facts, ["*"]) == ()


def test_windows_and_every_rope_of_an_architecture_are_run() -> None:
    llama3 = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    yarn = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    window = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1}
    two = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear"},
            "sliding_attention": {"rope_type": "default"},
        }
    }
    for config in (QWEN3_TINY, LLAMA_TINY, *({**LLAMA_TINY, **rope} for rope in (llama3, yarn))):
        assert unsupported(ModelFacts.from_hf_config(config)) == ()
    for config in ({**QWEN3_TINY, **window}, {**QWEN3_TINY, **two}):
        assert unsupported(ModelFacts.from_hf_config(config)) == ()


def test_an_architecture_without_arithmetic_is_its_own_error() -> None:
    with pytest.raises(UnknownFamilyError, match=r"MambaForCausalLM.*cannot be sized"):
        ModelFacts.from_hf_config({**QWEN3_TINY, "architectures": ["MambaForCausalLM"]})


def test_yarn_stretches_the_longest_context_and_no_other_rope_does() -> None:
    """As a user of Qwen adds it to config.json: max_position_embeddings stays that of training."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = {**QWEN3_TINY, "max_position_embeddings": 256}
    for key in ("rope_scaling", "rope_parameters"):
        facts = ModelFacts.from_hf_config({**config, key: yarn})
        assert (facts.max_position_embeddings, facts.longest_context) == (256, 512)
    without_original = {"type": "yarn", "factor": 1.5}
    facts = ModelFacts.from_hf_config({**config, "rope_scaling": without_original})
    assert facts.longest_context == 384
    for kind in ("linear", "dynamic", "llama3", "default"):
        other = {"rope_type": kind, "factor": 4.0}
        assert ModelFacts.from_hf_config({**config, "rope_scaling": other}).longest_context == 256
