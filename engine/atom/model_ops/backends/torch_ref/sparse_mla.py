"""Sparse latent attention in plain PyTorch: an indexer's selection of tokens, and attention to
these.

Queries are absorbed, since each has its own tokens. A few queries are computed at once, so
temporaries stay bounded.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.torch_ref.attention import rotate_first
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.quantised.cached_latents import (
    gather_entries,
    gather_index_keys,
    store_index_keys,
)
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight, Rotary
from atom.utils.forward_context import AttentionMetaData

_ELEMENTS = 2**24  # of temporaries, about


def select_tokens(
    tokens: IndexTokens,
    shape: IndexShape,
    rotary: Rotary,
    cache: IndexCache,
    step: AttentionMetaData,
) -> torch.Tensor | None:
    q = rotate_first(tokens.q, shape.rope_dim, rotary)
    keys = rotate_first(tokens.keys.unsqueeze(1), shape.rope_dim, rotary).squeeze(1)
    store_index_keys(cache, keys, step.slot_mapping)
    if step.max_context_len <= shape.top_k:
        return None
    selected = torch.full((len(q), shape.top_k), -1, dtype=torch.int64, device=q.device)
    starts, lengths = step.query_starts.tolist(), step.context_lens.tolist()
    size = cache.block_size
    for row, length in enumerate(lengths):
        at = torch.arange(length, device=q.device)
        slots = step.block_tables[row][at // size].long() * size + at % size
        context = gather_index_keys(cache, slots, q.dtype)
        end = starts[row + 1]
        pieces = max(1, _ELEMENTS // (shape.num_heads * length))
        for first in range(starts[row], end, pieces):
            own = slice(first, min(first + pieces, end))
            scores = _scores(q[own], tokens.weights[own], context, shape)
            position = torch.arange(own.start, own.stop, device=q.device) - end + length
            scores.masked_fill_(at > position.unsqueeze(1), -torch.inf)
            # Stable, so that of equal scores the lowest positions are selected.
            ordered, order = scores.sort(dim=-1, descending=True, stable=True)
            best = slots[order[:, : shape.top_k]]
            chosen = best.masked_fill(ordered[:, : shape.top_k] == -torch.inf, -1)
            selected[own, : chosen.shape[1]] = chosen
    return selected


def _scores(
    q: torch.Tensor, weights: torch.Tensor, context: torch.Tensor, shape: IndexShape
) -> torch.Tensor:
    """Score q [n, heads, dim] against context [length, dim] → [n, length] float32."""
    products = torch.matmul(q.float(), context.float().t()).relu_()  # [n, heads, length]
    return torch.einsum("nh,nhl->nl", weights.float() * shape.scale, products)


def sparse_mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    selected: torch.Tensor,
) -> torch.Tensor:
    q = tokens.q
    keys, values = up.data.unflatten(0, (shape.num_heads, -1)).split(
        [shape.nope_dim, shape.value_dim], dim=1
    )
    still, turning = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    folded = torch.cat((torch.einsum("thn,hnr->thr", still, keys), turning), dim=-1)
    found = torch.empty(
        (q.shape[0], shape.num_heads, shape.kv_rank), dtype=q.dtype, device=q.device
    )
    pieces = max(1, _ELEMENTS // (selected.shape[1] * shape.entry_dim))
    for own in torch.arange(len(q), device=q.device).split(pieces):
        slots, none = selected[own], selected[own] < 0
        context = gather_entries(cache, slots.clamp_min(0), q.dtype, slots=True)  # [n, k, entry]
        # Entries without a slot may hold any value, NaN included, which a mask does not stop.
        context.masked_fill_(none.unsqueeze(2), 0)
        scores = torch.bmm(folded[own] * shape.scale, context.transpose(1, 2))
        scores.masked_fill_(none.unsqueeze(1), -torch.inf)
        weights = scores.float().softmax(dim=-1).to(q.dtype)
        found[own] = torch.bmm(weights, context[..., : shape.kv_rank])
    return torch.einsum("thr,hvr->thv", found, values).flatten(1)
