"""Causal attention of whole prompts by the library: without a history, the cache is not needed.

`scaled_dot_product_attention` reaches 450 to 610 TFLOP/s on an H200, the paged kernel 300 to 410
(docs/results/gpu/attention.md). But it starts once per group of equal prompts, a short prompt does
not fill the card, and the first call of a length costs some 40 ms on the host, for the plan. So the
step's metadata names the groups that are worth it, and the leading part of odd lengths. The library
attends to the rest, and to chunks after a history, in pieces (`chunk_attention`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.values import AttentionShape
from atom.utils.forward_context import EqualPrompts


def dense_attention(
    q: torch.Tensor,
    qkv: torch.Tensor,
    shape: AttentionShape,
    group: EqualPrompts,
) -> torch.Tensor:
    """Map q [T, Hq, D] and qkv [T, (Hq + 2·Hkv)·D], with rotated keys in their places, of the whole
    step → the leading tokens of the group's prompts, [rows · leading, Hq, D]."""
    tokens = slice(group.first_token, group.first_token + group.rows * group.leading)
    heads = qkv[tokens].view(group.rows, group.leading, -1, shape.head_dim).transpose(1, 2)
    key, value = heads[:, shape.num_heads :].split(shape.num_kv_heads, dim=1)
    query = q[tokens].view(group.rows, group.leading, -1, shape.head_dim).transpose(1, 2)
    result = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=shape.scale, enable_gqa=True
    )
    return result.transpose(1, 2).flatten(0, 1)
