"""Attention of one prompt's chunk over gathered tokens, by torch: for the CPU's backends.

A long prompt's scores are a product of matrices, which torch's attention computes best. It gets a
few hundred queries at a time, which bounds the mask and skips tokens after them or outside their
window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from atom.model_ops.quantised.cached_heads import gather_heads
from atom.model_ops.values import AttentionShape, LayerCache
from atom.utils.forward_context import AttentionMetaData

_QUERIES = 512  # that are computed together
_MASKED = 1 << 22  # elements of a mask that differs by head, at most


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A row of a step: its block table [blocks] int32, and the tokens it attends over, its own
    included. last_seen [n] int32: the last position that each of its n tokens attends to, None if
    none attends to a later one."""

    table: torch.Tensor
    length: int
    last_seen: torch.Tensor | None = None


def prompt_row(shape: AttentionShape, step: AttentionMetaData, row: int) -> tuple[slice, PromptRow]:
    """Return a row of a step as a layer of this shape sees it, and its tokens in the step."""
    own, last = slice(*step.query_starts[row : row + 2].tolist()), shape.last_seen(step)
    seen = None if last is None else last[own]
    return own, PromptRow(step.block_tables[row], int(step.context_lens[row]), seen)


def attend_prompt(
    q: torch.Tensor,
    shape: AttentionShape,
    cache: LayerCache,
    row: PromptRow,
    out: torch.Tensor,
) -> None:
    """Attend with a prompt's last n tokens, q, out [n, Hq, D], to the whole row."""
    size, history = cache.block_size, row.length - q.shape[0]
    first_block = (history + 1 - shape.mask.seen(history + 1)) // size
    blocks = row.table[first_block : -(-row.length // size)]
    first = first_block * size
    k, v = (
        tensor.flatten(0, 1)[: row.length - first].transpose(0, 1)[None]
        for tensor in gather_heads(cache, blocks, q.dtype)
    )  # [1, Hkv, tokens, D]
    pieces = _QUERIES
    if shape.sinks is not None:
        pieces = max(1, min(pieces, _MASKED // (shape.num_heads * row.length)))
    for start in range(0, q.shape[0], pieces):
        some = q[start : start + pieces]
        begin, end = history + start, history + start + some.shape[0]
        last = None if row.last_seen is None else row.last_seen[start : start + pieces]
        reach = end if last is None else max(end, int(last.max()) + 1)
        lowest = begin + 1 - shape.mask.seen(begin + 1)
        # No tokens before these queries, and all of them seen: the mask is a plain triangle.
        whole = begin == 0 and shape.mask.seen(end) == end and shape.sinks is None
        whole &= last is None
        keys, values = (each[:, :, lowest - first : reach - first] for each in (k, v))
        mask = None if whole else _seen((begin, end), (lowest, reach), shape, last)
        if shape.sinks is not None and mask is not None:
            scores = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
            keys, values, mask = with_sinks(keys, values, scores, shape.sinks[:, None, None])
        out[start : start + pieces] = F.scaled_dot_product_attention(
            some.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=whole,
            scale=shape.scale,
            enable_gqa=True,
        )[0].transpose(0, 1)


def with_sinks(
    k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Append a zero token for the sinks, whose score comes from the mask: k, v [.., L, D], mask
    [.., n, L], sinks [.., 1, 1], to which the mask is widened."""
    shape = torch.broadcast_shapes(mask.shape[:-1], sinks.shape[:-1])
    column = sinks.to(mask.dtype).expand(*shape, 1)
    mask = torch.cat((mask.expand(*shape, mask.shape[-1]), column), dim=-1)
    return F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), mask


def _seen(
    queries: tuple[int, int],
    tokens: tuple[int, int],
    shape: AttentionShape,
    last: torch.Tensor | None,
) -> torch.Tensor:
    """Return which of the tokens each query attends to, both from a first position to an end. last
    [n] int32: the last position that each query attends to, None if none attends to a later one."""
    at, key = torch.arange(*queries).unsqueeze(1), torch.arange(*tokens)
    seen: torch.Tensor = shape.mask.sees(at, key)
    return seen if last is None else seen | ((key > at) & (key <= last.unsqueeze(1)))
