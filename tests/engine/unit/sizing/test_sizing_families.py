"""Every family's shape against transformers' own modules: parameters, and which layers slide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from atom.sizing import CacheKind, ModelFacts, ModelFactsError
from atom.sizing.architectures import ARCHITECTURES
from tests.support.models.parameter_count import parameter_count

COMMON: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
LATENT: dict[str, Any] = {
    **{key: value for key, value in COMMON.items() if key != "head_dim"},
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
# By transformers' class prefix; several where a key changes what exists.
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {**COMMON, "attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2", {key: COMMON[key] for key in COMMON if key != "head_dim"}),
    "qwen2-sliding": (
        "Qwen2",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 3,
        },
    ),
    "qwen3": ("Qwen3", {**COMMON, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "Qwen3Moe",
        {**COMMON, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "qwen3-moe-some-dense": (
        "Qwen3Moe",
        {
            **COMMON,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [3],
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            **COMMON,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
            "attention_bias": True,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 10,
        },
    ),
    "qwen3.5": (
        "Qwen3_5Text",
        {
            **COMMON,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", *["linear_attention"] * 3],
        },
    ),
    "qwen3.5-moe": (
        "Qwen3_5MoeText",
        {
            **COMMON,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 24,
            "mamba_n_heads": 6,
            "mamba_d_state": 12,
        },
    ),
    "granite-hybrid-dense": (
        "GraniteMoeHybrid",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "layer_types": ["full_attention", *["linear_attention"] * 3],
            "num_local_experts": 0,
            "shared_intermediate_size": 56,
            "mamba_n_heads": 12,
            "mamba_n_groups": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "nemotron-h": (
        "NemotronH",
        {
            **{key: COMMON[key] for key in COMMON if key != "num_hidden_layers"},
            "layers_block_type": [
                "linear_attention",
                "moe",
                "linear_attention",
                "full_attention",
                "mlp",
            ],
            "n_routed_experts": 6,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "mamba_num_heads": 6,
            "mamba_head_dim": 10,
            "n_groups": 3,
            "ssm_state_size": 12,
            "mlp_bias": True,
            "use_bias": True,
        },
    ),
    "kimi-linear": (
        "KimiLinear",
        {
            **LATENT,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
            "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2],
            "num_experts": 6,
            "num_experts_per_token": 2,
            "num_shared_experts": 2,
            "moe_intermediate_size": 24,
            "linear_num_heads": 3,
            "linear_head_dim": 12,
        },
    ),
    "lfm2": (
        "Lfm2",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_multiple_of": 16,
            "conv_L_cache": 4,
            "conv_bias": True,
        },
    ),
    "lfm2-listed": (
        "Lfm2",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "full_attn_idxs": [0, 2],
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2-moe": (
        "Lfm2Moe",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "num_dense_layers": 1,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "mistral": ("Mistral", COMMON),
    "mistral-without-window": ("Mistral", {**COMMON, "sliding_window": None}),
    "mixtral": ("Mixtral", {**COMMON, "num_local_experts": 4}),
    "deepseek-v2": ("DeepseekV2", {**LATENT, "q_lora_rank": 30, "first_k_dense_replace": 1}),
    "deepseek-v2-lite": ("DeepseekV2", {**LATENT, "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", {**LATENT, "q_lora_rank": 30}),
    "deepseek-v3-bias": (
        "DeepseekV3",
        {**LATENT, "q_lora_rank": 30, "attention_bias": True, "first_k_dense_replace": 2},
    ),
    "deepseek-v32": (
        "DeepseekV32",
        {**LATENT, "q_lora_rank": 30, "index_n_heads": 3, "index_head_dim": 16},
    ),
    "deepseek-v4": (
        "DeepseekV4",
        {
            **{key: COMMON[key] for key in COMMON if key != "intermediate_size"},
            "moe_intermediate_size": 24,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "q_lora_rank": 30,
            "o_groups": 3,
            "o_lora_rank": 20,
            "index_n_heads": 3,
            "index_head_dim": 16,
            "sliding_window": 32,
        },
    ),
    "deepseek-v4-listed": (
        "DeepseekV4",
        {
            **{key: COMMON[key] for key in COMMON if key != "intermediate_size"},
            "moe_intermediate_size": 24,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "q_lora_rank": 30,
            "o_groups": 2,
            "o_lora_rank": 20,
            "hc_mult": 2,
            "compress_ratios": [0, 0, 4, 128],
            "compress_rate_hca": 64,
            "num_hash_layers": 1,
            "qk_rope_head_dim": 4,
        },
    ),
    "glm4-moe": (
        "Glm4Moe",
        {
            **COMMON,
            "moe_intermediate_size": 24,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "use_qk_norm": True,
        },
    ),
    "seed-oss": ("SeedOss", {**COMMON, "mlp_bias": True}),
    "smollm3": ("SmolLM3", {**COMMON, "pad_token_id": 0}),
    "smollm3-sliding": (
        "SmolLM3",
        {
            **COMMON,
            "pad_token_id": 0,
            "use_sliding_window": True,
            "sliding_window": 32,
            "no_rope_layer_interval": 2,
        },
    ),
    "ernie4.5": ("Ernie4_5", {**COMMON, "use_bias": True}),
    "exaone4": ("Exaone4", COMMON),
    "olmo3": ("Olmo3", {**COMMON, "attention_bias": True}),
    "granite": ("Granite", {**COMMON, "attention_bias": True, "mlp_bias": True}),
    "phi3": ("Phi3", {**COMMON, "pad_token_id": 0}),
    "phi3-sliding": ("Phi3", {**COMMON, "pad_token_id": 0, "sliding_window": 32}),
    "hunyuan": ("HunYuanDenseV1", {**COMMON, "attention_bias": True}),
    "hunyuan-moe": ("HunYuanMoEV1", {**COMMON, "num_experts": 6, "moe_topk": 2}),
    "minimax-m2": ("MiniMaxM2", {**COMMON, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "minimax-m3": (
        "MiniMaxM3VLText",
        {
            **COMMON,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 24,
            "index_n_heads": COMMON["num_key_value_heads"],
            "index_head_dim": 12,
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
    ),
    "mimo-v2": (
        "MiMoV2Flash",
        {
            **COMMON,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "v_head_dim": 8,
            "num_key_value_heads": 3,  # twice as many in a window, which divide the 6 heads
        },
    ),
    "glm4-moe-lite": ("Glm4MoeLite", {**LATENT, "q_lora_rank": 30}),
    "glm5": ("GlmMoeDsa", {**LATENT, "q_lora_rank": 30, "index_n_heads": 3, "index_head_dim": 16}),
    "glm5-shared-indexers": (
        "GlmMoeDsa",
        {
            **LATENT,
            "q_lora_rank": 30,
            "index_n_heads": 3,
            "index_head_dim": 16,
            "index_topk_pattern": "FSSF",
        },
    ),
    "ernie4.5-moe": (
        "Ernie4_5_Moe",
        {
            **{key: COMMON[key] for key in COMMON if key != "head_dim"},
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "gpt-oss": ("GptOss", {**COMMON, "num_local_experts": 4}),
    "gpt-oss-layer-types": (
        "GptOss",
        {
            **COMMON,
            "num_local_experts": 4,
            "attention_bias": False,
            "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
        },
    ),
    "llama4": ("Llama4Text", {**COMMON, "num_local_experts": 4, "attention_bias": True}),
    "llama4-some-dense": (
        "Llama4Text",
        {
            **COMMON,
            "num_local_experts": 4,
            "intermediate_size_mlp": 112,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 32,
            "no_rope_layers": [1, 0, 0, 1],
        },
    ),
    "llama4-listed": (
        "Llama4Text",
        {
            **COMMON,
            "num_local_experts": 4,
            "moe_layers": [0, 3],
            "layer_types": ["full_attention", *["chunked_attention"] * 3],
        },
    ),
    "gemma2": ("Gemma2", COMMON),
    "gemma3": ("Gemma3Text", {**COMMON, "num_hidden_layers": 7, "sliding_window": 16}),
    "gemma4": (
        "Gemma4Text",
        {
            **COMMON,
            "num_hidden_layers": 7,
            "hidden_size_per_layer_input": 0,
            "sliding_window": 16,
            "global_head_dim": 48,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
        },
    ),
    "gemma4-small": (
        "Gemma4Text",
        {
            **COMMON,
            "num_hidden_layers": 13,
            "hidden_size_per_layer_input": 20,
            "vocab_size_per_layer_input": 1100,
            "num_kv_shared_layers": 7,
            "use_double_wide_mlp": True,
            "global_head_dim": 48,
        },
    ),
    "gemma4-experts": (
        "Gemma4Text",
        {
            **COMMON,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
    ),
    "gemma3-pattern": ("Gemma3Text", {**COMMON, "sliding_window_pattern": 2}),
}


def oracle_config(prefix: str, keys: Mapping[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    return getattr(transformers, f"{prefix}Config")(**keys)


def facts_of(prefix: str, keys: Mapping[str, Any]) -> ModelFacts:
    name = f"{prefix.removesuffix('Text')}ForCausalLM"
    return ModelFacts.from_hf_config({**keys, "architectures": [name], "torch_dtype": "bfloat16"})


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_the_real_module(case: str) -> None:
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    prefix, keys = CASES[case]
    config = oracle_config(prefix, keys)
    import transformers

    with torch.device("meta"):
        module = getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")(config)
    module.tie_weights()
    # A correction of the balance is a buffer in most families, and never trained.
    expected = sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if not name.endswith("e_score_correction_bias")
    )
    # A number of each layer of Gemma 4 is a buffer, too.
    expected += sum(name.endswith("layer_scalar") for name, _ in module.named_buffers())
    assert parameter_count(facts_of(prefix, keys)) == expected


@pytest.mark.parametrize("case", CASES)
def test_the_layers_that_slide_are_those_that_transformers_makes_slide(case: str) -> None:
    prefix, keys = CASES[case]
    config = oracle_config(prefix, keys)
    window = getattr(config, "sliding_window", getattr(config, "attention_chunk_size", None))
    kinds = getattr(config, "layer_types", None)
    layers = facts_of(prefix, keys).layers  # of Nemotron-H two are one here
    expected = [False] * len(layers)
    if window is not None:
        expected = [kind != "full_attention" for kind in kinds] if kinds else [True] * len(expected)
    assert [layer.attention.cache is CacheKind.WINDOW for layer in layers] == expected
    assert {layer.attention.mask.window for layer in layers if layer.attention.mask.window} <= {
        window
    }


def test_experts_of_each_layer_are_said_for_all_layers() -> None:
    keys = {**COMMON, "num_experts": 6}
    layers = facts_of("HunYuanMoEV1", {**keys, "moe_topk": [2, 1, 3, 2]}).layers
    assert [layer.mlp.experts and layer.mlp.experts.per_token for layer in layers] == [2, 1, 3, 2]
    with pytest.raises(ModelFactsError, match=r"moe_topk is of 1 layers, and there is a layer 1"):
        facts_of("HunYuanMoEV1", {**keys, "moe_topk": [2]})


def test_every_family_is_compared() -> None:
    compared = {f"{prefix.removesuffix('Text')}ForCausalLM" for prefix, _ in CASES.values()}
    assert compared == set(ARCHITECTURES)
