"""A tiny MiniMax-M3 of other shapes than the plain one: an indexer wider than the heads, spans of
five tokens, two of them always the newest, and a layer in the middle that attends to all tokens."""

from __future__ import annotations

from typing import Any

MINIMAX_M3_WIDE: dict[str, Any] = {
    "architecture": "minimax_m3", "layers": 3, "heads": 6, "kv_heads": 3, "hidden": 72,
    "extra": {
        "index_n_heads": 3, "index_head_dim": 20, "index_block_size": 5, "index_topk_blocks": 4,
        "index_local_blocks": 2, "num_experts_per_tok": 1, "routed_scaling_factor": 1.3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0},
        "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
}  # fmt: skip
