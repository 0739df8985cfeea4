"""Causal attention of whole prompts by the library: no history, so no cache to look into.

`scaled_dot_product_attention` reaches 450 to 540 TFLOP/s on an H200 where the paged kernel reaches
300 to 390 (docs/results/gpu-log.md), but it starts once per group of equal prompts and a short
prompt does not fill the card: the step's metadata names the groups that are worth it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.interface import AttentionShape
from atom.utils.forward_context import EqualPrompts


def dense_attention(
    q: torch.Tensor,
    qkv: torch.Tensor,
    shape: AttentionShape,
    group: EqualPrompts,
) -> torch.Tensor:
    """q [T, Hq, D] and qkv [T, (Hq + 2·Hkv)·D], with rotated keys in their places, of the whole
    step → the group's tokens, [t, Hq, D]."""
    tokens = slice(group.first_token, group.first_token + group.rows * group.length)
    heads = qkv[tokens].view(group.rows, group.length, -1, shape.head_dim).transpose(1, 2)
    key, value = heads[:, shape.num_heads :].split(shape.num_kv_heads, dim=1)
    query = q[tokens].view(group.rows, group.length, -1, shape.head_dim).transpose(1, 2)
    result = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=shape.scale, enable_gqa=True
    )
    return result.transpose(1, 2).flatten(0, 1)
