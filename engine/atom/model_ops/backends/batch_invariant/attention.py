# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal attention over the paged cache, with the same bits for a query in any step.

Queries of a row are tiled by their positions, not from the beginning of a chunk. A query's context
is divided into splits by the query's position. So a query is computed alike as a decode, in a
prompt of any chunks, after a cached prefix, or among drafts. A split is folded front to back, and
splits are folded into each other in order: by one program, or, if a step has too few programs to
fill a card, by one program per split and a kernel that folds their results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.attention.paged_tiles import (
    LayerStep,
    add_sinks,
    begin_softmax,
    first_seen,
    head_elements,
    load_sinks,
    mask_constants,
    real_elements,
    real_lanes,
    score_constants,
)
from atom.model_ops.backends.triton_ops.attention.prefill import attend, find_row
from atom.model_ops.backends.triton_ops.launch import (
    cache_pointers,
    compute_units,
    head_lanes,
    next_power_of_2,
)
from atom.model_ops.values import AttentionShape, LayerCache
from atom.sizing.mask_rule import CAUSAL
from atom.utils.forward_context import AttentionMetaData

# Queries times heads of a tile, and cached tokens of one: the same for decodes and prompts.
_BLOCK_M, _BLOCK_N = 64, 64
_WARPS, _STAGES = 4, 2
# Programs that share a row's splits, at most, and programs per multiprocessor that are enough.
_MOST_SHARING, _ENOUGH = 32, 2


@triton.jit
def split_tokens(position):
    """Tokens of a split of what the query at a position attends to, so that there are not many of
    them. A tile's queries, which begin at a multiple of their number, all have the same."""
    size = tl.where(position < 8192, 256, 1024)
    size = tl.where(position < 32768, size, 4096)
    return tl.where(position < 131072, size, 16384)


def most_splits(context: int) -> int:
    """Return the most splits of the context of a query with so many tokens."""
    return max(32, triton.cdiv(context, 16384))


@triton.jit
def fold(highest, total, acc, other_highest, other_total, other_acc):
    """Fold a later split's softmax [M] of values [M, LANES] into that of the ones before it."""
    both = tl.maximum(highest, other_highest)
    # Rows without a query, and a window's first splits, may have seen no token.
    base = tl.where(both == float("-inf"), 0.0, both)
    kept, added = tl.exp2(highest - base), tl.exp2(other_highest - base)
    # Said as fused: a compiler may fuse either product, and would in one kernel and not in another.
    total = tl.fma(total, kept, other_total * added)
    weight = tl.broadcast_to(kept[:, None], acc.shape)
    acc = tl.fma(acc, weight, other_acc * added[:, None])
    return both, total, acc


@triton.jit
def position_tile(
    starts_ptr, contexts_ptr, tile, first_row, rows, TOKENS: tl.constexpr, ALONE: tl.constexpr
):  # fmt: skip
    """Find the tile of a row that a program has: (row, its first query's number, position of the
    tile's first lane, whether it has any query). ALONE: rows have one query each, and tiles are
    rows."""
    if ALONE:
        row = first_row + tile
        query = tl.load(starts_ptr + row)
        position = tl.maximum(tl.load(contexts_ptr + row) - 1, 0) // TOKENS * TOKENS
        return row, query, position, query >= 0
    else:
        # As many tiles as a row's queries fill, and at most two more, at its begin and end.
        index = find_row(starts_ptr, tile, first_row, rows, TOKENS, 2)
        row = first_row + index
        query = tl.load(starts_ptr + row)
        queries = tl.load(starts_ptr + row + 1) - query
        context = tl.load(contexts_ptr + row)
        number = tile - ((query - tl.load(starts_ptr + first_row)) // TOKENS + 2 * index)
        position = ((context - queries) // TOKENS + number) * TOKENS
        return row, query, position, (queries > 0) & (position < context)


@triton.jit
def _split(
    q, cache, table_ptr, head, position, tile_position, split, length, low, end, scale,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The softmax and values of one split of what a tile's queries see."""
    ROWS: tl.constexpr = q.shape[0]
    LANES: tl.constexpr = q.shape[1]
    highest, total, acc = begin_softmax(ROWS, LANES)
    first, last = split * length, tl.minimum((split + 1) * length, end)
    # Which tiles are masked follows from the tile's position alone.
    unmasked = tl.minimum(tile_position // BLOCK_N * BLOCK_N, last)
    if WINDOW:
        # Tokens that the tile's first query sees and its last one does not.
        all_see = first_seen(tile_position + ROWS, WINDOW, IN_CHUNKS)
        begin = first_seen(tile_position + 1, WINDOW, IN_CHUNKS)
        first = tl.maximum(first, begin // BLOCK_N * BLOCK_N)
        edge = tl.minimum(tl.cdiv(all_see, BLOCK_N) * BLOCK_N, last)
        highest, total, acc = attend(
            q, cache, table_ptr, head, position, position, first, edge, low, end, scale,
            highest, total, acc,
            HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, True,
        )  # fmt: skip
        first = tl.maximum(first, edge)
    highest, total, acc = attend(
        q, cache, table_ptr, head, position, position, first, unmasked, low, end, scale,
        highest, total, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, False,
    )  # fmt: skip
    return attend(
        q, cache, table_ptr, head, position, position, tl.maximum(first, unmasked), last, low, end,
        scale, highest, total, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "first_row", "rows", "most"])
def _attention_kernel(
    q_ptr, cache, tables_ptr, contexts_ptr, starts_ptr, out_ptr, sinks_ptr, left_parts,
    table_stride, first_row, rows, most, scale,
    GROUP: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr,
    SOFTCAP: tl.constexpr, ALONE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """SHARED: so many programs share a row's splits, and leave each in partial [rows, Hq, most, D]
    and lse [rows, Hq, most, 2] float32, its highest score and its sum; 1: one folds them all.
    left_parts: (partial, lse), None if one folds them all."""
    partial_ptr, lse_ptr = left_parts
    LANES: tl.constexpr = head_lanes(D)
    GROUP_PADDED: tl.constexpr = next_power_of_2(GROUP)
    TOKENS: tl.constexpr = BLOCK_M // GROUP_PADDED
    head = tl.program_id(1)
    row, first_query, tile_position, has_any = position_tile(
        starts_ptr, contexts_ptr, tl.program_id(0), first_row, rows, TOKENS, ALONE
    )
    if not has_any:
        return
    context = tl.load(contexts_ptr + row)
    queries = tl.load(starts_ptr + row + 1) - first_query
    lane = tl.arange(0, BLOCK_M)
    # A query's lanes follow from its position, not from its place in a chunk: so its products are
    # summed in the same order in every step.
    position = tile_position + lane // GROUP_PADDED
    member = lane % GROUP_PADDED
    # Padding has a context of 0, and its only query sees no token.
    query = position - tl.maximum(context - queries, 0)
    is_real = (query >= 0) & (query < queries) & (member < GROUP)
    real = real_lanes(is_real, D, LANES)
    element = head_elements(D, LANES)
    query_head = (first_query + query).to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    q = tl.load(q_ptr + query_head[:, None] * D + element[None, :], mask=real, other=0.0)
    end = tl.minimum(tile_position + TOKENS, context)
    # Splits are cut by the tile's position too: a longer context adds some, and moves none.
    length = split_tokens(tile_position)
    low, first_split = 0, 0
    if WINDOW:
        first_split = first_seen(tile_position + 1, WINDOW, IN_CHUNKS) // length
        low = first_seen(tl.maximum(tile_position, context - queries) + 1, WINDOW, IN_CHUNKS)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    highest, total, acc = begin_softmax(BLOCK_M, LANES)
    # Folded from front to back. Programs that share the splits fold none: which of them ends first
    # would decide the order of the sum.
    for split in range(first_split + tl.program_id(2), tl.cdiv(end, length), SHARED):
        own_highest, own_total, own_acc = _split(
            q, cache, table_ptr, head, position, tile_position, split, length, low, end, scale,
            HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP,
        )  # fmt: skip
        if SHARED == 1:
            highest, total, acc = fold(highest, total, acc, own_highest, own_total, own_acc)
        else:
            own = ((row - first_row).to(tl.int64) * (HKV * GROUP) + head * GROUP + member) * most
            own += split
            tl.store(partial_ptr + own[:, None] * D + element[None, :], own_acc, mask=real)
            tl.store(lse_ptr + own * 2, own_highest, mask=is_real)
            tl.store(lse_ptr + own * 2 + 1, own_total, mask=is_real)
    if SHARED == 1:
        sinks = float("-inf")
        if sinks_ptr is not None:
            sinks = load_sinks(sinks_ptr, head * GROUP + member, member < GROUP)
        result = softmax_result(highest, total, acc, sinks, sinks_ptr is not None)
        result = result.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + query_head[:, None] * D + element[None, :], result, mask=real)


@triton.jit
def softmax_result(highest, total, acc, sinks, HAS_SINKS: tl.constexpr):
    """Divide what all folded splits sum up to, [M, LANES]; zeros of a row that saw nothing."""
    if HAS_SINKS:
        highest, total, acc = add_sinks(sinks, highest, total, acc)
    return acc / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["most"])
def _fold_kernel(
    partial_ptr, lse_ptr, contexts_ptr, out_ptr, sinks_ptr, most,
    HQ: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    IN_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Fold one row's and head's splits, which programs left, in order."""
    LANES: tl.constexpr = head_lanes(D)
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    # As _attention_kernel cuts the same query's splits, which TOKENS is given for.
    tile_position = tl.maximum(context - 1, 0) // TOKENS * TOKENS
    length = split_tokens(tile_position)
    first_split = 0
    if WINDOW:
        first_split = first_seen(tile_position + 1, WINDOW, IN_CHUNKS) // length
    element, real = head_elements(D, LANES), real_elements(D, LANES)
    highest, total, acc = begin_softmax(1, LANES)
    only = tl.arange(0, 1)
    query_head = row.to(tl.int64) * HQ + head
    # From front to back, as one program folds them: the bits must not tell how many shared them.
    for split in range(first_split, tl.cdiv(context, length)):
        own = query_head * most + split + only
        own_acc = tl.load(
            partial_ptr + own[:, None] * D + element[None, :], mask=real[None, :], other=0.0
        )
        own_highest = tl.load(lse_ptr + own * 2)
        own_total = tl.load(lse_ptr + own * 2 + 1)
        highest, total, acc = fold(highest, total, acc, own_highest, own_total, own_acc)
    sinks = float("-inf")
    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, head + only, only == 0)
    result = softmax_result(highest, total, acc, sinks, sinks_ptr is not None)
    result = result.to(out_ptr.dtype.element_ty)
    out_at = out_ptr + query_head * D + element[None, :] + only[:, None]
    tl.store(out_at, result, mask=real[None, :])


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    """See `Backend`."""
    if op == "paged_attention" and any(shape.sees_ahead for shape in case.layers.attention):
        return ("its queries see no later token, and tokens of an image do",)
    crowds = {shape.num_heads // shape.num_kv_heads for shape in case.layers.attention}
    if op == "paged_attention" and max(crowds, default=1) > _BLOCK_M:
        return (f"computes up to {_BLOCK_M} query heads for a KV head, not {max(crowds)}",)
    return ()


def paged_attention(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    new = torch.zeros_like if step.has_padding else torch.empty_like
    out, layer = new(q, memory_format=torch.contiguous_format), LayerStep(shape, cache, step)
    decodes, rows = step.num_decodes, step.context_lens.shape[0]
    q = q.contiguous()
    if decodes:
        _attend_decodes(q, layer, out)
    if decodes < rows:
        tokens = _BLOCK_M // next_power_of_2(shape.num_heads // shape.num_kv_heads)
        tiles = (q.shape[0] - decodes) // tokens + 2 * (rows - decodes)
        _launch((tiles, shape.num_kv_heads, 1), q, layer, out, _Rows(decodes, rows))
    return out.flatten(1)


# Splits' results: values and their weights; None without them.
Parts = tuple[torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Neighbouring rows of a step, first to end. alone: each has one query; parts: where programs
    that share a row leave its splits, see _attention_kernel."""

    first: int
    end: int
    alone: bool = False
    parts: Parts = (None, None)


def _attend_decodes(q: torch.Tensor, layer: LayerStep, out: torch.Tensor) -> None:
    shape, step = layer.shape, layer.step
    rows, heads = step.num_decodes, shape.num_kv_heads
    shared = shared_programs(rows * heads, q.device)
    parts = empty_parts(step, shape.num_heads, shape.head_dim) if shared > 1 else (None, None)
    _launch((rows, heads, shared), q, layer, out, _Rows(0, rows, alone=True, parts=parts))
    if shared > 1:
        tokens = _BLOCK_M // next_power_of_2(shape.num_heads // heads)
        fold_parts(parts, step, out, tokens, shape)


def shared_programs(programs: int, device: torch.device) -> int:
    """Return how many programs share a decode's splits, if a step has `programs` without
    sharing."""
    wanted = _ENOUGH * compute_units(device) // programs
    return min(_MOST_SHARING, next_power_of_2(max(1, wanted)))


def empty_parts(step: AttentionMetaData, heads: int, dim: int) -> Parts:
    """Allocate the splits' results of a step's decodes, as _attention_kernel writes them."""
    size = (step.num_decodes, heads, most_splits(step.max_context_len))
    device = step.context_lens.device
    partial = torch.empty((*size, dim), dtype=torch.float32, device=device)
    return partial, torch.empty((*size, 2), dtype=torch.float32, device=device)


def fold_parts(
    parts: Parts,
    step: AttentionMetaData,
    out: torch.Tensor,
    tokens: int,
    shape: AttentionShape | None = None,
) -> None:
    """Fold the decodes' splits into out [T, Hq, D]. tokens: queries of a tile; shape: of a layer
    with a mask or sinks."""
    partial, lse = parts
    assert partial is not None
    rows, heads, most, dim = partial.shape
    _fold_kernel[(rows, heads)](
        partial, lse, step.context_lens, out, None if shape is None else shape.sinks, most,
        HQ=heads, D=dim, TOKENS=tokens, **mask_constants(shape.mask if shape else CAUSAL),
        num_warps=4 if dim > 256 else 1,
    )  # fmt: skip


def _launch(
    grid: tuple[int, int, int],
    q: torch.Tensor,
    layer: LayerStep,
    out: torch.Tensor,
    rows: _Rows,
) -> None:
    """Launch the kernel for the rows. grid: tiles, KV heads, programs that share a row's splits."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    partial, _ = rows.parts
    wide = head_lanes(shape.head_dim) > 128
    _attention_kernel[grid](
        q, cache_pointers(cache), step.block_tables, step.context_lens, step.query_starts, out,
        shape.sinks, rows.parts, step.block_tables.stride(0),
        rows.first, rows.end - rows.first, 0 if partial is None else partial.shape[2],
        shape.scale * math.log2(math.e),
        GROUP=shape.num_heads // shape.num_kv_heads, HKV=shape.num_kv_heads, D=shape.head_dim,
        BLOCK_SIZE=cache.block_size, BLOCK_M=_BLOCK_M, BLOCK_N=_BLOCK_N,
        ALONE=rows.alone, SHARED=grid[2], **score_constants(shape),
        num_warps=8 if wide else _WARPS, num_stages=1 if torch.version.hip else _STAGES,
    )  # fmt: skip
