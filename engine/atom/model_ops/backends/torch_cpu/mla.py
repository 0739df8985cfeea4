"""MLA on the CPU: absorbed for decodes and short chunks, up-projected for prompts.

Decode rows come in the padded groups of attention.py. For a prompt, a few heads are up-projected at
once, and a few queries computed at once, so temporaries stay bounded for any context.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.prompt_attention import PromptRow
from atom.model_ops.backends.torch_cpu.attention import DecodeGroup, decode_groups
from atom.model_ops.backends.torch_cpu.dense import rms_norm
from atom.model_ops.backends.torch_cpu.rope_store import rotate
from atom.model_ops.quantised.cached_latents import gather_entries, store_entries
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight, Rotary
from atom.utils.forward_context import AttentionMetaData

_QUERIES = 512  # of up-projected attention that are computed together
_ELEMENTS = 2**24  # of temporaries, about


def mla_rope_store(
    tokens: LatentTokens,
    shape: LatentShape,
    rotary: Rotary,
    cache: LatentCache,
    slot_mapping: torch.Tensor,
) -> LatentTokens:
    assert rotary.k_norm is not None
    latent = tokens.entries[:, : shape.kv_rank]
    latent.copy_(rms_norm(latent, rotary.k_norm))
    return rotate_and_store(tokens, shape, rotary, cache, slot_mapping)


def rotate_and_store(
    tokens: LatentTokens,
    shape: LatentShape,
    rotary: Rotary,
    cache: LatentCache,
    slot_mapping: torch.Tensor,
) -> LatentTokens:
    """Store tokens whose latents are normed already."""
    cos_sin = rotary.cos_sin.index_select(0, rotary.positions).to(tokens.q.dtype)
    for turning in (tokens.q[..., shape.nope_dim :], tokens.entries[:, None, shape.kv_rank :]):
        turning.copy_(rotate(turning, cos_sin))
    return LatentTokens(tokens.q, store_entries(cache, tokens.entries, slot_mapping))


def mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    q, decodes, rows = tokens.q, step.num_decodes, step.context_lens.shape[0]
    out = torch.empty((q.shape[0], shape.num_heads, shape.value_dim), dtype=q.dtype)
    if decodes:
        absorbed = _absorb(q[:decodes], shape, up)
        found = torch.empty((decodes, shape.num_heads, shape.kv_rank), dtype=q.dtype)
        for group in decode_groups(step, cache.block_size, None, q.dtype):
            _decode(group, absorbed, found, cache, shape)
        out[:decodes] = _values(found, shape, up)
    if decodes < rows:
        starts, lengths = step.query_starts.tolist(), step.context_lens.tolist()
        for row in range(decodes, rows):
            own = slice(starts[row], starts[row + 1])
            context = _context(cache, PromptRow(step.block_tables[row], lengths[row]), q.dtype)
            if shape.prefers_absorbed(starts[row + 1] - starts[row], lengths[row]):
                out[own] = _attend_folded(q[own], context, shape, up)
            else:
                _attend_unfolded(q[own], context, shape, up, out[own])
    return out.flatten(1)


def _by_head(up: LinearWeight, shape: LatentShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the up-projection into the matrices of keys [Hq, nope, rank] and of values [Hq, value,
    rank]."""
    keys, values = up.data.unflatten(0, (shape.num_heads, -1)).split(
        [shape.nope_dim, shape.value_dim], dim=1
    )
    return keys, values


def _absorb(q: torch.Tensor, shape: LatentShape, up: LinearWeight) -> torch.Tensor:
    """Absorb queries [n, Hq, nope + rope] → [n, Hq, entry], whose products with entries are the
    scores."""
    keys, _ = _by_head(up, shape)
    still, turning = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    absorbed = torch.bmm(still.transpose(0, 1), keys).transpose(0, 1)
    return torch.cat((absorbed, turning), dim=-1)


def _values(found: torch.Tensor, shape: LatentShape, up: LinearWeight) -> torch.Tensor:
    """Project weighted latents [n, Hq, rank] → [n, Hq, value]."""
    _, values = _by_head(up, shape)
    return torch.bmm(found.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)


def _decode(
    group: DecodeGroup,
    absorbed: torch.Tensor,
    found: torch.Tensor,
    cache: LatentCache,
    shape: LatentShape,
) -> None:
    """Compute the weighted latents of the group's rows, into found [R, Hq, rank]."""
    q = absorbed if group.rows is None else absorbed.index_select(0, group.rows)
    rows, longest = group.mask.shape[0], group.mask.shape[3]
    context = gather_entries(cache, group.tokens, q.dtype, slots=True)
    context = context.view(rows, longest, shape.entry_dim)
    scores = torch.baddbmm(group.mask[:, 0], q, context.transpose(1, 2), alpha=shape.scale)
    result = torch.bmm(scores.softmax(dim=-1), context[..., : shape.kv_rank])
    if group.rows is None:
        found.copy_(result)
    else:
        found.index_copy_(0, group.rows, result)


def _context(cache: LatentCache, row: PromptRow, dtype: torch.dtype) -> torch.Tensor:
    """Return the row's tokens [length, entry]."""
    blocks = row.table[: -(-row.length // cache.block_size)]
    return gather_entries(cache, blocks, dtype).flatten(0, 1)[: row.length]


def _attend_folded(
    q: torch.Tensor, context: torch.Tensor, shape: LatentShape, up: LinearWeight
) -> torch.Tensor:
    """Attend with the last n tokens of a context, q [n, Hq, nope + rope] → [n, Hq, value]."""
    count, length = q.shape[0], context.shape[0]
    absorbed = _absorb(q, shape, up)
    found = torch.empty((count, shape.num_heads, shape.kv_rank), dtype=q.dtype)
    pieces = max(1, _ELEMENTS // (shape.num_heads * length))
    for first in range(0, count, pieces):
        some = absorbed[first : first + pieces]
        end = length - count + first + some.shape[0]
        scores = torch.matmul(some.flatten(0, 1) * shape.scale, context[:end].t())
        scores = scores.view(some.shape[0], shape.num_heads, end)
        later = torch.ones((some.shape[0], end), dtype=torch.bool).triu(end - some.shape[0] + 1)
        scores.masked_fill_(later.unsqueeze(1), -torch.inf)
        weights = scores.softmax(dim=-1).flatten(0, 1)
        result = torch.matmul(weights, context[:end, : shape.kv_rank])
        found[first : first + pieces] = result.view(some.shape[0], shape.num_heads, -1)
    return _values(found, shape, up)


def _attend_unfolded(
    q: torch.Tensor,
    context: torch.Tensor,
    shape: LatentShape,
    up: LinearWeight,
    out: torch.Tensor,
) -> None:
    """Attend with keys and values up-projected for every token, into out."""
    length = context.shape[0]
    per_head = length * (shape.head_dim + max(shape.head_dim, shape.value_dim))
    some = max(1, _ELEMENTS // per_head)
    latent, key = context.split([shape.kv_rank, shape.rope_dim], dim=-1)
    for first in range(0, shape.num_heads, some):
        heads = slice(first, first + some)
        matrix = up.data.unflatten(0, (shape.num_heads, -1))[heads].flatten(0, 1)
        up_projected = F.linear(latent, matrix).view(length, -1, shape.nope_dim + shape.value_dim)
        k, v = up_projected.transpose(0, 1).split([shape.nope_dim, shape.value_dim], dim=-1)
        k = torch.cat((k, key.expand(k.shape[0], -1, -1)), dim=-1)
        _causal(q[:, heads].transpose(0, 1), k, v, shape, out[:, heads].transpose(0, 1))


def _causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: LatentShape, out: torch.Tensor
) -> None:
    """Attend causally: q, out [h, n, ..] of the last n tokens of k and v [h, length, ..]."""
    count, length = q.shape[1], k.shape[1]
    if shape.value_dim < shape.head_dim:  # torch's attention is fused for equal sizes alone
        v = F.pad(v, (0, shape.head_dim - shape.value_dim))
    for first in range(0, count, _QUERIES):
        some = q[:, first : first + _QUERIES]
        end = length - count + first + some.shape[1]
        before = end - some.shape[1]
        seen = torch.ones((some.shape[1], end), dtype=torch.bool).tril(before) if before else None
        result = F.scaled_dot_product_attention(
            some[None], k[None, :, :end], v[None, :, :end],
            attn_mask=seen, is_causal=seen is None, scale=shape.scale,
        )  # fmt: skip
        out[:, first : first + _QUERIES] = result[0, ..., : shape.value_dim]
