"""Tiny models of which some layers keep states: what `make_tiny_checkpoint` is told of each."""

from __future__ import annotations

from typing import Any

HYBRID: dict[str, dict[str, Any]] = {
    "qwen3-next": {"architecture": "qwen3_next", "layers": 5, "head_dim": 24},
    "qwen3-next-odd": {
        "architecture": "qwen3_next", "layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "intermediate": 40,
        "extra": {
            "num_experts": 5, "num_experts_per_tok": 1, "mlp_only_layers": [1],
            "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_key_head_dim": 12,
            "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", *["linear_attention"] * 3],
        },
    },
    "qwen3.5": {
        "architecture": "qwen3_5", "layers": 5, "head_dim": 24, "tie_word_embeddings": True,
    },
    "qwen3.5-moe": {
        "architecture": "qwen3_5_moe", "layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 96,
        "extra": {
            "num_experts": 5, "num_experts_per_tok": 2, "linear_num_key_heads": 3,
            "linear_num_value_heads": 9, "linear_key_head_dim": 12, "linear_value_head_dim": 10,
        },
    },
    "granite-hybrid": {"architecture": "granite_hybrid", "layers": 4},
    "granite-hybrid-dense": {
        "architecture": "granite_hybrid", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 12,
        "hidden": 72, "tie_word_embeddings": True,
        "extra": {
            "num_local_experts": 0, "mamba_n_heads": 9, "mamba_n_groups": 3, "mamba_d_state": 10,
            "mamba_d_conv": 3, "mamba_proj_bias": True, "mamba_conv_bias": False,
            "position_embedding_type": None,
        },
    },
    "nemotron-h": {"architecture": "nemotron_h"},
    "nemotron-h-odd": {
        "architecture": "nemotron_h", "heads": 6, "kv_heads": 3, "head_dim": 12, "hidden": 72,
        "intermediate": 40,
        "extra": {
            "layers_block_type": ["full_attention", "mlp", "linear_attention", "linear_attention"],
            "mamba_num_heads": 9, "n_groups": 3, "mamba_head_dim": 10, "conv_kernel": 3,
            "mlp_bias": True, "use_bias": True, "use_conv_bias": False,
        },
    },
    "kimi-linear": {"architecture": "kimi_linear", "layers": 4},
    "kimi-linear-odd": {
        "architecture": "kimi_linear", "layers": 3, "heads": 6, "hidden": 72, "intermediate": 40,
        "extra": {
            "num_experts": 6, "num_experts_per_token": 2, "num_expert_group": 3, "topk_group": 2,
            "linear_num_heads": 3, "linear_head_dim": 12, "linear_conv_kernel_dim": 3,
            "num_shared_experts": 2, "moe_renormalize": False, "q_lora_rank": None,
        },
    },
    "lfm2": {
        "architecture": "lfm2", "layers": 4, "tie_word_embeddings": True,
        "extra": {"block_multiple_of": 8},
    },
    "lfm2-odd": {
        "architecture": "lfm2", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 12,
        "hidden": 72, "intermediate": 40,
        "extra": {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
    },
    "lfm2-moe": {"architecture": "lfm2_moe", "layers": 4},
}  # fmt: skip
