"""Attention of grouped heads to selected spans of tokens, in plain PyTorch (MiniMax-M3).

An indexer scores every token of a row; spans are selected by the highest score in them. A few
queries are computed at once, so temporaries stay bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from atom.model_ops.backends.torch_ref.attention import rotate_first
from atom.model_ops.index_values import IndexCache, SpanIndexShape, SpanTokens
from atom.model_ops.quantised.cached_heads import gather_heads
from atom.model_ops.quantised.cached_latents import gather_index_keys, store_index_keys
from atom.model_ops.values import AttentionShape, LayerCache, Rotary
from atom.sizing.overheads import MOST_ENTRY_SCORES
from atom.utils.forward_context import AttentionMetaData


def select_spans(
    tokens: SpanTokens,
    shape: SpanIndexShape,
    rotary: Rotary,
    cache: IndexCache,
    step: AttentionMetaData,
) -> torch.Tensor | None:
    q = rotate_first(tokens.q, shape.rope_dim, rotary)
    keys = rotate_first(tokens.keys.unsqueeze(1), shape.rope_dim, rotary).squeeze(1)
    real = step.slot_mapping >= 0
    store_index_keys(cache, keys[real], step.slot_mapping[real])
    if step.max_context_len <= shape.tokens:
        return None
    counts = (len(q), shape.num_heads, shape.top_k)
    selected = torch.full(counts, -1, dtype=torch.int64, device=q.device)
    size = cache.block_size
    for row, own, length in _rows(step):
        at = torch.arange(length, device=q.device)
        slots = step.block_tables[row][at // size].long() * size + at % size
        context = gather_index_keys(cache, slots, q.dtype).float()
        for some in _pieces(own, shape.num_heads * length):
            scores = torch.matmul(q[some].float(), context.t())  # [n, heads, length]
            position = _positions(some, own, length, q.device)
            scores.masked_fill_(at > position[:, None, None], -torch.inf)
            chosen = _highest(scores, position, shape)
            selected[some, :, : chosen.shape[2]] = chosen
    return selected


def _highest(scores: torch.Tensor, position: torch.Tensor, shape: SpanIndexShape) -> torch.Tensor:
    """Choose spans by scores [n, heads, length] of queries at positions [n] → [n, heads, k]."""
    spans = -(-scores.shape[2] // shape.span)
    missing = spans * shape.span - scores.shape[2]
    padded = F.pad(scores, (0, missing), value=-torch.inf)
    best = padded.unflatten(2, (spans, shape.span)).amax(dim=3)
    newest = position[:, None] // shape.span - torch.arange(shape.newest, device=best.device)
    newest = newest.clamp_min(0)[:, None].expand(-1, best.shape[1], -1)
    best.scatter_(2, newest, torch.inf)
    found, chosen = best.topk(min(shape.top_k, spans), dim=2)
    return chosen.masked_fill(found == -torch.inf, -1)


def span_attention(
    q: torch.Tensor,
    shape: AttentionShape,
    cache: LayerCache,
    selected: tuple[torch.Tensor, SpanIndexShape],
    step: AttentionMetaData,
) -> torch.Tensor:
    spans, index = selected
    out, group = torch.zeros_like(q), shape.num_heads // shape.num_kv_heads
    for row, own, length in _rows(step):
        blocks = step.block_tables[row][: -(-length // cache.block_size)].long()
        k, v = (
            each.flatten(0, 1)[:length].transpose(0, 1)[None]  # [1, Hkv, length, D]
            for each in gather_heads(cache, blocks, q.dtype)
        )
        at = torch.arange(length, device=q.device)
        for some in _pieces(own, shape.num_heads * length):
            position = _positions(some, own, length, q.device)
            seen = _seen(spans[some], -(-length // index.span), index.span, length)
            seen &= at <= position[:, None, None]
            mask = seen.transpose(0, 1).repeat_interleave(group, dim=0)[None]  # [1, Hq, n, length]
            found = F.scaled_dot_product_attention(
                q[some].transpose(0, 1)[None], k, v, mask, scale=shape.scale, enable_gqa=True
            )
            out[some] = found[0].transpose(0, 1)
    return out.flatten(1)


def _seen(chosen: torch.Tensor, spans: int, span: int, length: int) -> torch.Tensor:
    """Return whether tokens are in chosen spans [n, heads, k] → bool [n, heads, length]."""
    marks = torch.zeros((*chosen.shape[:2], spans + 1), dtype=torch.bool, device=chosen.device)
    marks.scatter_(2, chosen.masked_fill(chosen < 0, spans), value=True)  # padding: one too many
    return marks[..., :spans].repeat_interleave(span, dim=2)[..., :length]


def _rows(step: AttentionMetaData) -> Iterator[tuple[int, slice, int]]:
    """Yield each row that is no padding: its number, tokens of the step, and length."""
    starts, lengths = step.query_starts.tolist(), step.context_lens.tolist()
    for row, length in enumerate(lengths):
        if length:
            yield row, slice(starts[row], starts[row + 1]), length


def _pieces(own: slice, scores: int) -> Iterator[slice]:
    """Divide a row's tokens, of which each takes so many scores."""
    count = max(1, MOST_ENTRY_SCORES // scores)
    for first in range(own.start, own.stop, count):
        yield slice(first, min(first + count, own.stop))


def _positions(some: slice, own: slice, length: int, device: torch.device) -> torch.Tensor:
    """Return the positions of some of a row's tokens, which are its last ones."""
    return torch.arange(some.start, some.stop, device=device) - own.stop + length
