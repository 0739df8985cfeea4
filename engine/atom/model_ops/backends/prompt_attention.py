"""Attention of one prompt's chunk over gathered tokens, by torch: for the CPU's backends.

A long prompt's scores are a product of matrices, which torch's attention computes best; it is given
a few hundred queries at a time, which bounds the mask and skips what lies after them or has left
their window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from atom.model_ops.quantised.cached_heads import gather_heads
from atom.model_ops.values import AttentionShape, LayerCache

_QUERIES = 512  # that are computed together


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
    """q, out [n, Hq, D]: of the row's last n tokens."""
    size, history = cache.block_size, row.length - q.shape[0]
    first_block = (history + 1 - shape.seen(history + 1)) // size
    blocks = row.table[first_block : -(-row.length // size)]
    first = first_block * size
    k, v = (
        tensor.flatten(0, 1)[: row.length - first].transpose(0, 1)[None]
        for tensor in gather_heads(cache, blocks, q.dtype)
    )  # [1, Hkv, tokens, D]
    for start in range(0, q.shape[0], _QUERIES):
        some = q[start : start + _QUERIES]
        begin, end = history + start, history + start + some.shape[0]
        lowest = begin + 1 - shape.seen(begin + 1)
        # Nothing before these queries, and all of them seen: the mask is a plain triangle.
        whole = begin == 0 and shape.seen(end) == end
        out[start : start + _QUERIES] = F.scaled_dot_product_attention(
            some.transpose(0, 1)[None],
            k[:, :, lowest - first : end - first],
            v[:, :, lowest - first : end - first],
            attn_mask=None if whole else _seen(begin, lowest, end, shape.window),
            is_causal=whole,
            scale=shape.scale,
            enable_gqa=True,
        )[0].transpose(0, 1)


def _seen(begin: int, lowest: int, end: int, window: int | None) -> torch.Tensor:
    """Which of the tokens lowest .. end each query of begin .. end attends to."""
    at, key = torch.arange(begin, end).unsqueeze(1), torch.arange(lowest, end)
    return key <= at if window is None else (key <= at) & (key > at - window)
