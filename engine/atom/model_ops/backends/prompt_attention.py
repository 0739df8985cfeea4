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

_QUERIES = 512  # that are computed together
_MASKED = 1 << 22  # elements of a mask that differs by head, at most


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A row of a step: its block table [blocks] int32, and the tokens it attends over, its own
    included."""

    table: torch.Tensor
    length: int


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
        lowest = begin + 1 - shape.mask.seen(begin + 1)
        # No tokens before these queries, and all of them seen: the mask is a plain triangle.
        whole = begin == 0 and shape.mask.seen(end) == end and shape.sinks is None
        keys, values = (each[:, :, lowest - first : end - first] for each in (k, v))
        mask = None if whole else _seen(begin, lowest, end, shape)
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


def _seen(begin: int, lowest: int, end: int, shape: AttentionShape) -> torch.Tensor:
    """Return which of the tokens lowest .. end each query of begin .. end attends to."""
    at, key = torch.arange(begin, end).unsqueeze(1), torch.arange(lowest, end)
    return shape.mask.sees(at, key)
