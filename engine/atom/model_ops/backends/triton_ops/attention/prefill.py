# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal attention of ragged rows of queries over the paged cache, their own tokens included.

A program takes one tile of one row's queries and one KV head; the query heads of the group are
interleaved in the tile, so keys and values are loaded once for all of them. Tiles wholly before the
first query need no mask; only those around the diagonal do. A chunk may begin anywhere in its
context. FlashAttention-2 (Dao 2023).

The grid bounds the number of tiles from above without reading the rows; each program finds its row
by a search in query_starts, and rows' last tiles, the longest, come first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import (
    LayerStep,
    add_sinks,
    begin_softmax,
    cap_scores,
    first_seen,
    head_elements,
    load_blocks,
    load_sinks,
    real_elements,
    real_lanes,
    score_constants,
    score_tile,
    softmax_step,
)
from atom.model_ops.backends.triton_ops.compile.tuning import PrefillConfig, prefill_config
from atom.model_ops.backends.triton_ops.launch import (
    cache_pointers,
    head_lanes,
    next_power_of_2,
)
from atom.model_ops.backends.triton_ops.xcd_order import head_dies, head_tile


@triton.jit
def find_row(
    starts_ptr, tile, first_row, rows, TOKENS: tl.constexpr, SPARE: tl.constexpr = 1
):  # fmt: skip
    """Find the row that owns a tile, counted from first_row: row r begins at tile start/TOKENS + r
    · SPARE; SPARE: the tiles that a row may have beyond those that its queries fill."""
    base = tl.load(starts_ptr + first_row)
    low, high = 0, rows
    # A search of a few loads that hit the cache, instead of a table of tiles that the host would
    # have to make.
    while low < high:
        middle = (low + high) // 2
        begins = (tl.load(starts_ptr + first_row + middle) - base) // TOKENS + SPARE * middle
        if begins <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def attend(
    q, cache, table_ptr, head, position, last, first, end, low, limit, scale,
    running_max, running_sum, acc,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Tokens [first, end) of the cache; masked tiles respect [low, limit), the window, and the last
    token that each query sees, which is usually the one at its position."""
    HAS_LOW: tl.constexpr = MASKED and WINDOW > 0
    LANES: tl.constexpr = q.shape[1]
    element, real = head_elements(D, LANES), real_elements(D, LANES)
    block = load_blocks(table_ptr, first, low, limit, BLOCK_SIZE, BLOCK_N, HAS_LOW)
    # The few masked tiles are not worth a pipeline; with one, the compiler of CUDA's assembler
    # serialises the matrix instructions of both loops (warning C7515).
    for start in tl.range(first, end, BLOCK_N, num_stages=1 if MASKED else None):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < limit
        if HAS_LOW:
            inside = inside & (token >= low)
        scores, value, value_scale = score_tile(
            q, cache, block, start, head, element, real, inside, HKV, D, BLOCK_SIZE, BLOCK_N, MASKED
        )
        block = load_blocks(table_ptr, start + BLOCK_N, low, limit, BLOCK_SIZE, BLOCK_N, HAS_LOW)
        scores = cap_scores(scores, scale, SOFTCAP)
        if MASKED:
            seen = token[None, :] <= last[:, None]
            if IN_CHUNKS:
                seen &= token[None, :] >= first_seen(position + 1, WINDOW, True)[:, None]
            elif WINDOW:
                seen &= token[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        # Only with a window may a query see no token of its first tiles.
        running_max, running_sum, acc = softmax_step(
            scores, value, value_scale, scale, running_max, running_sum, acc, HAS_LOW,
            cache[2] is not None,
        )  # fmt: skip
    return running_max, running_sum, acc


@triton.jit(do_not_specialize=["table_stride", "first_row", "rows", "skipped", "tokens"])
def _prefill_kernel(
    q_ptr, cache, tables_ptr, contexts_ptr, starts_ptr, out_ptr, sinks_ptr, last_seen_ptr,
    table_stride, first_row, rows, skipped, tokens, scale,
    GROUP: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr,
    SOFTCAP: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """skipped: leading queries of the only row that others compute; tokens: queries of all rows, at
    least, or fewer than the only row has left, whose others compute the rest."""
    LANES: tl.constexpr = head_lanes(D)
    GROUP_PADDED: tl.constexpr = next_power_of_2(GROUP)
    tokens_per_tile: tl.constexpr = BLOCK_M // GROUP_PADDED
    tile, head = head_tile(0, DIES), head_tile(1, DIES)
    index = find_row(starts_ptr, tile, first_row, rows, tokens_per_tile)
    row = first_row + index
    start = tl.load(starts_ptr + row) + skipped
    base = tl.load(starts_ptr + first_row) + skipped
    left = tl.load(starts_ptr + row + 1) - start
    queries = tl.minimum(left, tokens)
    tile = tile - ((start - base) // tokens_per_tile + index)
    tiles = tl.cdiv(queries, tokens_per_tile)
    if tile >= tiles:
        return
    # Last tiles first: they see most, and short ones then fill the gaps at the end.
    tile = tiles - 1 - tile
    context = tl.load(contexts_ptr + row)

    # Heads of a group are neighbours in the tile, so one load of a key serves all of them.
    lane = tl.arange(0, BLOCK_M)
    element = head_elements(D, LANES)
    query = tile * tokens_per_tile + lane // GROUP_PADDED
    member = lane % GROUP_PADDED
    real = real_lanes((query < queries) & (member < GROUP), D, LANES)
    query_head = (start + query).to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    q = tl.load(q_ptr + query_head[:, None] * D + element[None, :], mask=real, other=0.0)
    position = context - left + query
    first_position = context - left + tile * tokens_per_tile
    end = tl.minimum(first_position + tokens_per_tile, context)
    last = position
    if last_seen_ptr is not None:
        # Tokens of an image see its later ones, which are of this step, too.
        seen = tl.load(last_seen_ptr + start + query, mask=query < queries, other=0)
        last = tl.maximum(position, seen)
        end = tl.maximum(end, tl.max(seen, 0) + 1)
    # Tiles wholly before the first query need no mask, which costs as much as a score does.
    unmasked_end = (first_position + 1) // BLOCK_N * BLOCK_N

    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max, running_sum, acc = begin_softmax(BLOCK_M, LANES)
    low, unmasked = 0, 0
    if WINDOW:
        # The first query sees tokens from `low` on; from `unmasked` on every query sees all.
        if IN_CHUNKS:
            low = first_seen(first_position + 1, WINDOW, True)
        else:
            low = tl.maximum(first_position - WINDOW + 1, 0)
        all_see = first_seen(first_position + tokens_per_tile, WINDOW, IN_CHUNKS)
        unmasked = tl.minimum(tl.cdiv(all_see, BLOCK_N) * BLOCK_N, unmasked_end)
        unmasked = tl.maximum(unmasked, low // BLOCK_N * BLOCK_N)
        running_max, running_sum, acc = attend(
            q, cache, table_ptr, head, position, last, low // BLOCK_N * BLOCK_N, unmasked, low, end,
            scale, running_max, running_sum, acc,
            HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, True,
        )  # fmt: skip
    running_max, running_sum, acc = attend(
        q, cache, table_ptr, head, position, last, unmasked, unmasked_end, low, end,
        scale, running_max, running_sum, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, False,
    )  # fmt: skip
    running_max, running_sum, acc = attend(
        q, cache, table_ptr, head, position, last, unmasked_end, end, low, end,
        scale, running_max, running_sum, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP, True,
    )  # fmt: skip

    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, head * GROUP + member, member < GROUP)
        running_max, running_sum, acc = add_sinks(sinks, running_max, running_sum, acc)
    # Every query sees itself at least, so no sum is 0.
    result = (acc / running_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + query_head[:, None] * D + element[None, :], result, mask=real)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Neighbouring rows of a step, and how many queries they have together (or more). skipped: of
    a single row, the leading queries that are not of the span; it may then end before the row."""

    first_row: int
    rows: int
    tokens: int
    skipped: int = 0


def prefill_attention(
    q: torch.Tensor,
    layer: LayerStep,
    span: RowSpan,
    out: torch.Tensor,
    config: PrefillConfig | None = None,
) -> None:
    """Attend with the rows of `span`; q, out [T, Hq, D] are of the whole step."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    lanes = head_lanes(shape.head_dim)
    config = config or prefill_config(q.device, lanes, q.element_size())
    group = shape.num_heads // shape.num_kv_heads
    group_padded = next_power_of_2(group)
    block_m = max(config.block_m, group_padded)
    tiles = span.tokens // (block_m // group_padded) + span.rows
    # An option of CUDA's backend alone; only a table measured on such a card asks for it.
    limits = {} if config.max_registers is None else {"maxnreg": config.max_registers}
    _prefill_kernel[(tiles, shape.num_kv_heads)](
        q, cache_pointers(cache), step.block_tables, step.context_lens, step.query_starts, out,
        shape.sinks, shape.last_seen(step),
        step.block_tables.stride(0), span.first_row, span.rows, span.skipped,
        span.tokens, shape.scale * math.log2(math.e),
        GROUP=group, HKV=shape.num_kv_heads, D=shape.head_dim, BLOCK_SIZE=cache.block_size,
        BLOCK_M=block_m, BLOCK_N=config.block_n, **score_constants(shape),
        DIES=head_dies(q.device, shape.num_kv_heads),
        num_warps=config.num_warps, num_stages=config.num_stages, **limits,
    )  # fmt: skip
