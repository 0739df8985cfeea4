"""MLA in plain PyTorch, as the paper writes it: keys and values are up-projected from the
latents of every token that is attended to."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.torch_ref.attention import apply_rope
from atom.model_ops.backends.torch_ref.dense import rms_norm
from atom.model_ops.quantised.cached_latents import gather_entries, store_entries
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight, Rotary
from atom.utils.forward_context import AttentionMetaData


def mla_rope_store(
    tokens: LatentTokens,
    shape: LatentShape,
    rotary: Rotary,
    cache: LatentCache,
    slot_mapping: torch.Tensor,
) -> LatentTokens:
    assert rotary.k_norm is not None
    cos, sin = rotary.cos_sin[rotary.positions].chunk(2, dim=-1)
    still, turning = tokens.q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    q = torch.cat((still, apply_rope(turning, cos, sin)), dim=-1)
    latent, key = tokens.entries.split([shape.kv_rank, shape.rope_dim], dim=-1)
    key = apply_rope(key.unsqueeze(1), cos, sin).squeeze(1)
    entries = torch.cat((rms_norm(latent, rotary.k_norm), key), dim=-1)
    real = slot_mapping >= 0
    stored = store_entries(cache, entries[real], slot_mapping[real])
    entries = entries.to(stored.dtype)
    entries[real] = stored
    return LatentTokens(q, entries)


def mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    q = tokens.q
    out = torch.zeros(
        (q.shape[0], shape.num_heads, shape.value_dim), dtype=q.dtype, device=q.device
    )
    starts, lengths = step.query_starts.tolist(), step.context_lens.tolist()
    for row, length in enumerate(lengths):
        if length == 0:  # padding
            continue
        own = slice(starts[row], starts[row + 1])
        used = step.block_tables[row][: -(-length // cache.block_size)].long()
        context = gather_entries(cache, used, q.dtype).flatten(0, 1)[:length]
        out[own] = _attend(q[own], context, shape, up)
    return out.flatten(1)


def _attend(
    q: torch.Tensor, context: torch.Tensor, shape: LatentShape, up: LinearWeight
) -> torch.Tensor:
    """Attend: q [n, Hq, nope + rope] of the last n tokens of context [length, entry] → [n, Hq,
    value]."""
    count, length = q.shape[0], context.shape[0]
    latent, key = context.split([shape.kv_rank, shape.rope_dim], dim=-1)
    up_projected = F.linear(latent, up.data).view(length, shape.num_heads, -1)
    k, v = up_projected.split([shape.nope_dim, shape.value_dim], dim=-1)
    k = torch.cat((k, key.unsqueeze(1).expand(-1, shape.num_heads, -1)), dim=-1)
    seen = torch.ones((count, length), dtype=torch.bool, device=q.device).tril(length - count)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=shape.scale)
    return result.squeeze(0).transpose(0, 1)
