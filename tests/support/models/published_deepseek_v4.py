"""The config.json of a published DeepSeek V4, as far as it sizes anything."""

from __future__ import annotations

from typing import Any

# As deepseek-ai/DeepSeek-V4-Flash has them, without its quantised form.
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1024,
    "o_groups": 8, "o_lora_rank": 1024, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "sliding_window": 128, "hc_mult": 4, "qk_rope_head_dim": 64,
    "max_position_embeddings": 1_048_576, "vocab_size": 129_280, "num_hash_layers": 3,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "num_nextn_predict_layers": 1,
}  # fmt: skip
