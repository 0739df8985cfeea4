"""Rotary embedding, KV cache store and paged attention in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.prompt_attention import PromptRow, prompt_row
from atom.model_ops.backends.torch_ref.dense import rms_norm
from atom.model_ops.quantised.cached_heads import gather_heads, store_heads
from atom.model_ops.values import AttentionShape, LayerCache, Rotary
from atom.utils.forward_context import AttentionMetaData


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, heads, D]: the two halves of D are the pairs' members (neox); cos, sin
    [T, D/2] float32."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_first(x: torch.Tensor, count: int, rotary: Rotary) -> torch.Tensor:
    """Rotate the first `count` elements of x [T, heads, dim], by halves."""
    cos, sin = (each[:, : count // 2] for each in rotary.cos_sin[rotary.positions].chunk(2, dim=-1))
    turning, still = x.split([count, x.shape[-1] - count], dim=-1)
    return torch.cat((apply_rope(turning, cos, sin), still), dim=-1)


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, Hq + 2·Hkv, D]
    q, k, v = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    if rotary.q_norm is not None and rotary.k_norm is not None:
        q, k = rms_norm(q, rotary.q_norm), rms_norm(k, rotary.k_norm)
    cos, sin = rotary.cos_sin[rotary.positions].chunk(2, dim=-1)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    real = slot_mapping >= 0
    store_heads(cache, k[real], v[real], slot_mapping[real])
    return q


def paged_attention(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    decodes = step.num_decodes
    out = torch.zeros_like(q)
    if decodes:
        out[:decodes] = _decode(q[:decodes], shape, cache, step)
    for row in range(decodes, len(step.context_lens)):
        own, prompt = prompt_row(shape, step, row)
        out[own] = _prefill(q[own], shape, cache, prompt)
    return out.flatten(1)


def _decode(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    """Attend with all one-token rows together, each padded to the longest context and masked."""
    rows = q.shape[0]
    lengths = step.context_lens[:rows]
    longest = max(1, int(lengths.max()))
    blocks = -(-longest // cache.block_size)
    tables = step.block_tables[:rows, :blocks].long()
    # [R, blocks, S, Hkv, D] → [R, Hkv, longest, D]
    k, v = (
        tensor.flatten(1, 2)[:, :longest].transpose(1, 2)
        for tensor in gather_heads(cache, tables, q.dtype)
    )
    at = torch.arange(longest, device=q.device)
    seen = shape.mask.sees(lengths.unsqueeze(1) - 1, at)  # [R, longest]
    # Slots that a row does not see hold anything, NaN included, and a mask does not stop a NaN.
    unseen = ~seen[:, None, :, None]
    k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)
    attended = _attend(q.unsqueeze(2), k, v, seen[:, None, None], shape).squeeze(2)
    return attended.masked_fill((lengths == 0)[:, None, None], 0.0)


def _prefill(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, row: PromptRow
) -> torch.Tensor:
    """Attend with a row's chunk of queries to its whole context, which ends with the chunk's
    tokens."""
    length = row.length
    used = row.table[: -(-length // cache.block_size)].long()
    k, v = (
        tensor.flatten(0, 1)[:length].transpose(0, 1)  # [Hkv, length, D]
        for tensor in gather_heads(cache, used, q.dtype)
    )
    count = q.shape[0]
    at = torch.arange(length - count, length, device=q.device).unsqueeze(1)
    key = torch.arange(length, device=q.device)
    seen = shape.mask.sees(at, key)  # [count, length]
    if row.last_seen is not None:
        seen |= (key > at) & (key <= row.last_seen.unsqueeze(1))
    if shape.mask.window is not None:
        unseen = ~seen.any(dim=0)[None, :, None]
        k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)
    out = _attend(q.transpose(0, 1)[None], k[None], v[None], seen, shape)
    return out.squeeze(0).transpose(0, 1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """Attend: q [R, Hq, n, D], k, v [R, Hkv, L, D], seen [.., n, L] → [R, Hq, n, D]."""
    if shape.softcap is None and shape.sinks is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=shape.scale, enable_gqa=True
        )
    group = shape.num_heads // shape.num_kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.transpose(-1, -2)) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if scores.dtype is not torch.float64:
        scores = scores.float()
    if shape.sinks is not None:
        sinks = shape.sinks.to(scores.dtype).view(1, -1, 1, 1)
        scores = torch.cat((scores, sinks.expand(*scores.shape[:3], 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[2]]
    return weights.to(v.dtype) @ v
