# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Select the best-scored tokens of each query, exactly and without sorting.

A program takes a query. It finds the k-th highest score eight bits at a time, from the highest, by
counting the scores that agree so far by their next eight bits: four passes, for any k and context.
A last pass writes the slots of all higher scores and, of equal ones, those of the lowest positions,
in the order of positions. A query that reaches no more than k tokens gets them all without reading
scores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.indexer_scores import Piece
from atom.model_ops.backends.triton_ops.ordered_keys import ordered_key
from atom.model_ops.index_values import IndexShape
from atom.utils.forward_context import AttentionMetaData

# Scores that a pass takes at once; in the interpreter fewer, for less to compute.
_CHUNK, _INTERPRETED_CHUNK = 4096, 1024


@triton.jit
def _row_of_token(starts_ptr, token, rows):
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) <= token:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _slots_at(table_ptr, position, mask, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table_ptr + position // BLOCK_SIZE, mask=mask, other=0).to(tl.int64)
    return block * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def _least_selected(scores_ptr, reach, TOP_K: tl.constexpr, CHUNK: tl.constexpr):
    """The key of the k-th highest of `reach` scores, and how many equals of it are selected."""
    found = tl.full([], 0, tl.uint32)
    agreed = tl.full([], 0, tl.uint32)  # mask of the bits that are found
    wanted = tl.full([], TOP_K, tl.int32)
    digit = tl.arange(0, 256)
    shift = tl.full([], 24, tl.uint32)
    for _ in range(4):
        # A radix select: 256 counters a pass, four passes, no memory but registers.
        counts = tl.zeros([256], tl.int32)
        for start in range(0, reach, CHUNK):
            position = start + tl.arange(0, CHUNK)
            inside = position < reach
            key = ordered_key(tl.load(scores_ptr + position, mask=inside, other=0.0))
            own = ((key >> shift) & 255).to(tl.int32)
            counts += tl.histogram(own, 256, mask=inside & ((key & agreed) == found))
        # Counts from the highest digit down, without a reversed scan.
        reaching = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0) + counts
        chosen = tl.max(tl.where(reaching >= wanted, digit, 0), axis=0)
        wanted -= tl.sum(tl.where(digit > chosen, counts, 0), axis=0)
        found = found | (chosen.to(tl.uint32) << shift)
        agreed = (agreed >> 8) | 0xFF000000
        shift = shift - 8
    return found, wanted


@triton.jit(do_not_specialize=["table_stride", "rows", "first", "width"])
def _index_select_kernel(
    scores_ptr, tables_ptr, contexts_ptr, starts_ptr, selected_ptr,
    table_stride, rows, first, width,
    TOP_K: tl.constexpr, BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr, DECODES: tl.constexpr,
):  # fmt: skip
    """selected_ptr [T, TOP_K]; DECODES: every token is a row."""
    token = first + tl.program_id(0)
    row = token
    if not DECODES:
        row = _row_of_token(starts_ptr, token, rows)
    reach = token + 1 - tl.load(starts_ptr + row + 1) + tl.load(contexts_ptr + row)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    to = selected_ptr + token.to(tl.int64) * TOP_K
    if reach <= TOP_K:
        for start in range(0, TOP_K, CHUNK):
            position = start + tl.arange(0, CHUNK)
            inside = position < reach
            slot = _slots_at(table_ptr, position, inside, BLOCK_SIZE)
            tl.store(to + position, tl.where(inside, slot, -1), mask=position < TOP_K)
        return
    scores_ptr += tl.program_id(0).to(tl.int64) * width
    least, equals = _least_selected(scores_ptr, reach, TOP_K, CHUNK)
    written = tl.full([], 0, tl.int32)
    for start in range(0, reach, CHUNK):
        position = start + tl.arange(0, CHUNK)
        inside = position < reach
        key = ordered_key(tl.load(scores_ptr + position, mask=inside, other=0.0))
        equal = (inside & (key == least)).to(tl.int32)
        # Of scores equal to the k-th the first positions win: the selection is the same on every
        # card.
        first_equals = (equal > 0) & (tl.cumsum(equal, axis=0) <= equals)
        selected = (inside & (key > least)) | first_equals
        # A scan gives each its place: slots come in order of positions.
        place = written + tl.cumsum(selected.to(tl.int32), axis=0) - 1
        slot = _slots_at(table_ptr, position, selected, BLOCK_SIZE)
        tl.store(to + place, slot, mask=selected)
        written += tl.sum(selected.to(tl.int32), axis=0)
        equals -= tl.sum(equal, axis=0)


def index_select(
    scores: torch.Tensor,
    shape: IndexShape,
    step: AttentionMetaData,
    piece: Piece,
    selected: torch.Tensor,
    *,
    block_size: int,
) -> None:
    """Select slots of the piece's tokens by their scores [tokens, width], into selected [T,
    top_k]."""
    tables = step.block_tables
    chunk = _CHUNK if selected.is_cuda else _INTERPRETED_CHUNK
    _index_select_kernel[(piece.tokens,)](
        scores, tables, step.context_lens, step.query_starts, selected,
        tables.stride(0), step.context_lens.shape[0], piece.first, piece.width,
        TOP_K=shape.top_k, BLOCK_SIZE=block_size, CHUNK=chunk, DECODES=piece.decodes,
        num_warps=8,
    )  # fmt: skip
