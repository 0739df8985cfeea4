"""Gemma 4's models in small: the dense one, E2B's and E4B's shape, and 26B-A4B's."""

from __future__ import annotations

from typing import Any

# Inputs of each layer, and layers that attend to keys of others.
GEMMA4_SMALL: dict[str, Any] = {
    "architecture": "gemma4", "layers": 9, "tie_word_embeddings": True,
    "extra": {
        "attention_k_eq_v": False, "num_global_key_value_heads": None,
        "use_double_wide_mlp": True, "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 512,
        "layer_types": [
            "sliding_attention" if (index + 1) % 3 else "full_attention" for index in range(9)
        ],
    },
}  # fmt: skip
# Experts beside an MLP.
GEMMA4_EXPERTS: dict[str, Any] = {
    "architecture": "gemma4", "layers": 6, "tie_word_embeddings": True,
    "extra": {
        "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 36,
    },
}  # fmt: skip
GEMMA4: dict[str, dict[str, Any]] = {
    "gemma4": {"architecture": "gemma4", "layers": 7, "tie_word_embeddings": True},
    "gemma4-odd": {
        "architecture": "gemma4", "layers": 5, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "intermediate": 40, "tie_word_embeddings": True,
        "extra": {
            "global_head_dim": 40, "attention_k_eq_v": False, "final_logit_softcapping": None,
            "layer_types": [
                "full_attention" if index % 2 else "sliding_attention" for index in range(5)
            ],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 50_000.0,
                },
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5_000.0},
            },
        },
    },
    "gemma4-small": GEMMA4_SMALL,
    "gemma4-experts-odd": {
        **GEMMA4_EXPERTS, "heads": 6, "kv_heads": 3, "head_dim": 24, "hidden": 72,
        "intermediate": 40, "extra": {**GEMMA4_EXPERTS["extra"], "global_head_dim": 40},
    },
}  # fmt: skip
