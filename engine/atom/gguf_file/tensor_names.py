"""Names of tensors in a GGUF file, and the names of the same tensors in a Hugging Face checkpoint.

The module also lists the tensors that llama.cpp stores in another order. For Llama's architecture
its rotary embedding takes the elements of a head in neighbouring pairs, so the rows of queries and
keys are permuted within each head; Qwen's have the checkpoint's order.
"""

from __future__ import annotations

import re

# Of the frequencies' factors (Llama 3.1's rope) model_config.py makes a field of the configuration.
ROPE_FACTORS = "rope_freqs.weight"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_WHOLE = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def checkpoint_name(stored: str) -> str:
    """Return the tensor's name in a Hugging Face checkpoint; of one that no architecture which is
    read has, its own."""
    layer = _LAYER.fullmatch(stored)
    if layer is None or layer[2] not in _PARTS:
        return _WHOLE.get(stored, stored)
    return f"model.layers.{layer[1]}.{_PARTS[layer[2]]}.{layer[3]}"


def is_rotated(stored: str) -> bool:
    """Return whether a tensor's rows are elements of heads that the rotary embedding turns."""
    return _ROTATED.fullmatch(stored) is not None
