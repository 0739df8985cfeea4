"""Norm of q and k, rotary embedding and KV cache store: q and k go through it as one tensor."""

from __future__ import annotations

import torch

from atom.model_ops.backends.torch_cpu.dense import unit_rms
from atom.model_ops.quantised.cached_heads import store_heads
from atom.model_ops.values import AttentionShape, LayerCache, Rotary


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, Hq + 2·Hkv, D]
    rotated_heads = shape.num_heads + shape.num_kv_heads
    qk = heads[:, :rotated_heads]
    if rotary.q_norm is not None and rotary.k_norm is not None:
        qk = unit_rms(qk, rotary.q_norm.eps)
        qk[:, : shape.num_heads].mul_(rotary.q_norm.weight)
        qk[:, shape.num_heads :].mul_(rotary.k_norm.weight)
    qk = rotate(qk, rotary.cos_sin.index_select(0, rotary.positions).to(qk.dtype))
    store_heads(cache, qk[:, shape.num_heads :], heads[:, rotated_heads:], slot_mapping)
    return qk[:, : shape.num_heads]


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, heads, D] by cos_sin [T, D], in halves, into a new tensor."""
    tokens, heads, dim = x.shape
    cos, sin = cos_sin.view(tokens, 1, 2, dim // 2).split(1, dim=2)  # [T, 1, 1, D/2]
    halves = x.unflatten(-1, (2, dim // 2))
    out = halves * cos
    turned = halves * sin
    out[:, :, 0] -= turned[:, :, 1]
    out[:, :, 1] += turned[:, :, 0]
    return out.view(tokens, heads, dim)
