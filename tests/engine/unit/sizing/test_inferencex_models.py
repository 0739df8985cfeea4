"""The models of InferenceX's configurations for AMD: which load, as the guide says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.sizing import ModelFacts, UnknownFamilyError, unsupported
from atom.sizing.architectures import LACKING
from atom.sizing.drafting import mtp_problems
from atom.sizing.engine_support import unsupported_architecture
from tests.support.models.published_deepseek_v4 import PRO, QUANTISED

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "sizing.md"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
MXFP4 = {
    "quant_method": "quark",
    "global_quant_config": {"weight": _MXFP4, "input_tensors": _MXFP4},
    "exclude": ["lm_head"],
}
COMMON = {"vocab_size": 129_280, "max_position_embeddings": 163_840, "torch_dtype": "bfloat16"}
R1 = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
}
GLM52 = {
    **COMMON,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "hidden_size": 6144,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "num_nextn_predict_layers": 1,
}
QWEN35 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    },
}
M3 = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "model_type": "minimax_m3_vl",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "minimax_m3",
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12_288,
        "shared_intermediate_size": 3072,
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 200_064,
        "max_position_embeddings": 524_288,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai",
        "moe_layer_freq": [0] * 3 + [1] * 57,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_score_type": "max",
            "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    },
}
LOADING: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "deepseek-ai/DeepSeek-R1-0528 (fp8)": (R1, FP8, 9),
    "amd/DeepSeek-R1-0528-MXFP4, -Preview, -v2": (R1, MXFP4, 7),
    "Qwen/Qwen3.5-397B-A17B-FP8": (QWEN35, FP8, 10),
    "amd/Qwen3.5-397B-A17B-MXFP4": (QWEN35, MXFP4, 5),
    "zai-org/GLM-5.2-FP8": (GLM52, FP8, 1),
    "amd/GLM-5.2-MXFP4": (GLM52, MXFP4, 2),
    "MiniMaxAI/MiniMax-M3-MXFP8, amd/MiniMax-M3-MXFP4": (M3, {"quant_method": "mxfp8"}, 3),
    "deepseek-ai/DeepSeek-V4-Pro": ({**PRO, "expert_dtype": "fp4"}, QUANTISED, 17),
}


def rows() -> dict[str, tuple[int, str]]:
    """The guide's table: a model's configurations, and whether it loads."""
    behind = GUIDE.read_text(encoding="utf-8").partition("InferenceX's configurations")[2]
    section = behind.partition("\n## ")[0]
    lines = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| ")]
    return {name.strip(): (int(count), loads.strip()) for name, count, loads in lines[1:]}


def test_every_configuration_is_counted_once() -> None:
    counts = [count for count, _ in rows().values()]
    loading = [count for count, loads in rows().values() if loads.startswith("yes")]
    assert sum(counts) == 56
    assert f"{sum(loading)} of 56 load" in GUIDE.read_text(encoding="utf-8")
    assert {name for name, (_, loads) in rows().items() if loads.startswith("yes")} == set(LOADING)


@pytest.mark.parametrize("name", LOADING)
def test_what_loads_is_accepted_in_its_format(name: str) -> None:
    config, quantization, count = LOADING[name]
    facts = ModelFacts.from_hf_config({**config, "quantization_config": quantization})
    assert unsupported(facts) == ()
    assert facts.quantization is not None
    said = rows()[name]
    assert said[0] == count
    if "MTP" in said[1]:
        assert list(mtp_problems(facts)) == []


@pytest.mark.parametrize("architecture", LACKING)
def test_what_does_not_load_is_refused_with_what_is_lacking(architecture: str) -> None:
    with pytest.raises(UnknownFamilyError) as refused:
        ModelFacts.from_hf_config({**R1, "architectures": [architecture]})
    message = unsupported_architecture(architecture, refused.value.nearest).message
    assert f"{architecture} is not supported: {LACKING[architecture]}" in message
    if refused.value.nearest:
        assert f"; the nearest that runs is {refused.value.nearest}" in message
