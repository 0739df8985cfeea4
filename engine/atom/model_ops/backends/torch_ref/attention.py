"""Rotary embedding, KV cache store and paged attention in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.torch_ref.dense import rms_norm
from atom.utils.forward_context import AttentionMetaData


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, heads, D]: the two halves of D are the pairs' members (neox); cos, sin
    [T, D/2] float32."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, Hq + 2·Hkv, D]
    q, k, v = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    cos, sin = cos_sin[positions].chunk(2, dim=-1)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    k_cache.flatten(0, 1)[slot_mapping] = k.to(k_cache.dtype)
    v_cache.flatten(0, 1)[slot_mapping] = v.to(v_cache.dtype)
    return q


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    decodes = metadata.num_decodes
    out = torch.empty_like(q)
    if decodes:
        out[:decodes] = _decode(q[:decodes], k_cache, v_cache, shape, metadata)
    starts = metadata.query_starts.tolist()
    lengths = metadata.context_lens.tolist()
    for row in range(decodes, len(lengths)):
        own = slice(starts[row], starts[row + 1])
        table = metadata.block_tables[row]
        out[own] = _prefill(q[own], k_cache, v_cache, shape, table, lengths[row])
    return out.flatten(1)


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    """All one-token rows together, each padded to the longest context and masked."""
    rows = q.shape[0]
    lengths = metadata.context_lens[:rows]
    longest = int(lengths.max())
    blocks = -(-longest // k_cache.shape[1])
    tables = metadata.block_tables[:rows, :blocks].long()
    # [R, blocks, S, Hkv, D] → [R, Hkv, longest, D]
    k = k_cache[tables].flatten(1, 2)[:, :longest].transpose(1, 2).to(q.dtype)
    v = v_cache[tables].flatten(1, 2)[:, :longest].transpose(1, 2).to(q.dtype)
    within = torch.arange(longest, device=q.device) < lengths.unsqueeze(1)  # [R, longest]
    # Slots past a row's end hold anything, NaN included, and a mask does not stop a NaN.
    beyond = ~within[:, None, :, None]
    k, v = k.masked_fill(beyond, 0), v.masked_fill(beyond, 0)
    out = F.scaled_dot_product_attention(
        q.unsqueeze(2), k, v, attn_mask=within[:, None, None], scale=shape.scale, enable_gqa=True
    )
    return out.squeeze(2)


def _prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    table: torch.Tensor,
    length: int,
) -> torch.Tensor:
    """One row's chunk of queries over its whole context, the last of which are its own."""
    blocks = -(-length // k_cache.shape[1])
    used = table[:blocks].long()
    k = k_cache[used].flatten(0, 1)[:length].transpose(0, 1).to(q.dtype)  # [Hkv, length, D]
    v = v_cache[used].flatten(0, 1)[:length].transpose(0, 1).to(q.dtype)
    count = q.shape[0]
    at = torch.arange(length - count, length, device=q.device)
    causal = torch.arange(length, device=q.device) <= at.unsqueeze(1)  # [count, length]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.unsqueeze(0),
        v.unsqueeze(0),
        attn_mask=causal,
        scale=shape.scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)
