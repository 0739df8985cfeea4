# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of decode rows of one sequence: a newest token and the drafts after it.

A program takes a run of rows, one KV head and one split of the run's context. The rows' query heads
of the group fill the tensor core's tile, which a single row would leave mostly padding, and the
sequence's keys and values are read once for all of them. Each row sees as much of the context as
its own length, in any order of rows. The cache holds the newest tokens of all rows, written before
the launch.

The grid depends on the host's bounds: the most runs, and the most rows of one. The device reads
where they begin. A program of an empty run ends at once, and the programs after the last run write
zeros for the rows that belong to no run, a graph's padding. A run that does not fit a tile is cut
into chunks, each of which reads its context once. Splits are those of decode attention, over the
tokens that any row of the run sees; each row gets its number of parts from the run's program.
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
from atom.model_ops.backends.triton_ops.attention.split_kv import (
    choose_splits,
    combining_tile,
    split_length,
    weigh_parts,
)
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig, decode_config
from atom.model_ops.backends.triton_ops.launch import (
    cache_pointers,
    compute_units,
    head_lanes,
    next_power_of_2,
)
from atom.utils.forward_context import DecodeRuns

# The tensor core's smallest tile of rows.
_LEAST_ROWS = 16
# Rows of a tile, and their elements, up to which its sums stay in registers.
_MOST_ROWS, _MOST_ELEMENTS = 64, 8192
_SUMS_OF_WARP = 2048


@triton.jit
def _write_padding(
    out_ptr, counts_ptr, head, first, rows, step, GROUP: tl.constexpr, TILE: tl.constexpr,
    HKV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write zeros for every step-th row from `first` on: padding rows of a graph, which belong to
    no sequence."""
    LANES: tl.constexpr = head_lanes(D)
    lane = tl.arange(0, TILE)
    element, real_element = head_elements(D, LANES), real_elements(D, LANES)
    for row in range(first, rows, step):
        at = (row + tl.zeros([TILE], tl.int64)) * (HKV * GROUP) + head * GROUP + lane
        zeros = tl.zeros([TILE, LANES], out_ptr.dtype.element_ty)
        mask = (lane < GROUP)[:, None] & real_element[None, :]
        tl.store(out_ptr + at[:, None] * D + element[None, :], zeros, mask=mask)
        # No parts: the kernel that combines them then leaves the zeros alone.
        tl.store(counts_ptr + row, 0)


@triton.jit
def _attend_run(
    q, cache, table_ptr, head, seen, start, low, end, scale, running_max, running_sum, acc,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Fold the cached tokens [start, end) of a sequence into the softmax of its rows, each of which
    sees the first `seen` [TILE] of them."""
    LANES: tl.constexpr = q.shape[1]
    element, real = head_elements(D, LANES), real_elements(D, LANES)
    block = load_blocks(table_ptr, start, low, end, BLOCK_SIZE, BLOCK_N, False)
    for first_token in range(start, end, BLOCK_N):
        token = first_token + tl.arange(0, BLOCK_N)
        inside = token < end
        scores, value, value_scale = score_tile(
            q, cache, block, first_token, head, element, real, inside, HKV, D, BLOCK_SIZE, BLOCK_N,
            True,
        )  # fmt: skip
        block = load_blocks(table_ptr, first_token + BLOCK_N, low, end, BLOCK_SIZE, BLOCK_N, False)
        scores = cap_scores(scores, scale, SOFTCAP)
        # A row must not see later drafts, nor, with a window, tokens that only earlier rows see.
        visible = inside[None, :] & (token[None, :] < seen[:, None])
        if IN_CHUNKS:
            visible &= token[None, :] >= first_seen(seen, WINDOW, True)[:, None]
        elif WINDOW:
            visible &= token[None, :] >= seen[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))
        # Sparse: a row may see no token of a whole tile, and its maximum is still -inf then.
        running_max, running_sum, acc = softmax_step(
            scores, value, value_scale, scale, running_max, running_sum, acc, True,
            cache[2] is not None,
        )  # fmt: skip
    return running_max, running_sum, acc


@triton.jit(do_not_specialize=["table_stride", "rows", "places", "chunks", "least", "splits"])
def _verify_kernel(
    q_ptr, cache, tables_ptr, contexts_ptr, run_starts_ptr, out_ptr, parts, sinks_ptr,
    table_stride, rows, places, chunks, least, splits, scale,
    GROUP: tl.constexpr, TILE: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    IN_CHUNKS: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """q_ptr, out_ptr: [rows, Hq, D]; parts: the splits' results, their logarithms, and [rows] the
    number of parts of each row's context."""
    partial_ptr, lse_ptr, counts_ptr = parts
    LANES: tl.constexpr = head_lanes(D)
    head, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    run = tile // chunks
    first = tl.load(run_starts_ptr + run) + tile % chunks * places
    lane = tl.arange(0, TILE)
    # Rows of the sequence are the slow index of the tile, so the heads of a group are neighbours in
    # q and in the result.
    place, member = lane // GROUP, lane % GROUP
    if tile == tl.num_programs(1) - 1:
        _write_padding(out_ptr, counts_ptr, head, first + split, rows, splits, GROUP, TILE, HKV, D)
        return
    count = tl.minimum(tl.load(run_starts_ptr + run + 1) - first, places)
    if count <= 0:
        return
    # Each row's visible tokens; and the longest row's block table, which reaches furthest.
    seen = tl.load(contexts_ptr + first + place, mask=place < count, other=0)
    context = tl.max(seen, axis=0)
    longest = first + tl.max(tl.where(seen == context, place, 0), axis=0)
    low = 0
    if WINDOW:
        shortest = tl.min(tl.where(place < count, seen, context), axis=0)
        low = first_seen(shortest, WINDOW, IN_CHUNKS)
    length = split_length(context - low, least, splits, BLOCK_N)
    start = low + split * length
    end = tl.minimum(start + length, context)
    if (start >= context) & (split > 0):
        return
    if (split == 0) & (head == 0):
        # Only here is it known how a sequence was cut: rows of the combining kernel have no other
        # way to learn the longest context among them.
        parts_of_row = tl.cdiv(context - low, length) + 0 * lane
        tl.store(counts_ptr + first + lane, parts_of_row, mask=lane < count)

    element = head_elements(D, LANES)
    stored_lanes = real_lanes(place < count, D, LANES)
    query_head = (first + place).to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    query_at = query_head[:, None] * D + element[None, :]
    q = tl.load(q_ptr + query_at, mask=stored_lanes, other=0.0)
    table_ptr = tables_ptr + longest.to(tl.int64) * table_stride
    running_max, running_sum, acc = begin_softmax(TILE, LANES)
    running_max, running_sum, acc = _attend_run(
        q, cache, table_ptr, head, seen, start, low, end, scale, running_max, running_sum, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, WINDOW, IN_CHUNKS, SOFTCAP,
    )  # fmt: skip
    whole = context - low <= length
    if sinks_ptr is not None:  # noqa: SIM102 - what the compiler knows, and what a program does
        if whole:  # for parts they count once, when these are combined
            sinks = load_sinks(sinks_ptr, head * GROUP + member, place < count)
            running_max, running_sum, acc = add_sinks(sinks, running_max, running_sum, acc)
    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    if whole:
        tl.store(out_ptr + query_at, result.to(out_ptr.dtype.element_ty), mask=stored_lanes)
    else:
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * D + element[None, :], result, mask=stored_lanes)
        # -inf for a row that sees no token of this part.
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=place < count)


@triton.jit(do_not_specialize=["splits"])
def _combine_verify_kernel(
    partial_ptr, lse_ptr, counts_ptr, out_ptr, sinks_ptr, splits,
    HQ: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Weigh the parts of one row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts_ptr + row)
    # No part to weigh: the row was written at once, or is padding.
    if count <= 1:
        return
    split = tl.arange(0, PADDED)
    at = (row.to(tl.int64) * HQ + head) * splits + split
    result = weigh_parts(partial_ptr, lse_ptr, sinks_ptr, at, split < count, head, HQ, D)
    result = result.to(out_ptr.dtype.element_ty)
    element = tl.arange(0, head_lanes(D))
    tl.store(out_ptr + (row.to(tl.int64) * HQ + head) * D + element, result, mask=element < D)


@dataclass(frozen=True, slots=True)
class VerifyTile:
    """rows: of the tensor core's tile, a power of two; places: of a run that it holds, each with
    the heads of a group; chunks: tiles of the longest run."""

    rows: int
    places: int
    chunks: int

    def warps(self, config: DecodeConfig, lanes: int, *, fp8: bool) -> int:
        """Return the number of warps: as many as the sums and masks need, since more would wait for
        each other. The smallest tile, and codes, which are converted in registers, get at least as
        many as a single row."""
        fewest = max(self.rows // _LEAST_ROWS, self.rows * lanes // _SUMS_OF_WARP, 2)
        return max(config.num_warps, fewest) if fp8 or self.rows == _LEAST_ROWS else fewest


def choose_verify_tile(group: int, longest: int, lanes: int) -> VerifyTile:
    """Choose a tile for a whole run if its sums fit the registers, else chunks of equal size."""
    most_rows = max(min(_MOST_ROWS, _MOST_ELEMENTS // lanes), _LEAST_ROWS)
    chunks = -(-longest // max(1, most_rows // group))
    places = -(-longest // chunks)
    return VerifyTile(max(_LEAST_ROWS, next_power_of_2(places * group)), places, chunks)


def fewest_runs(rows: int, runs: int, longest: int) -> int:
    """Return the fewest runs, up to `runs`, that may hold so many rows. The number of splits is
    chosen for it: if there are more runs, the splits are too fine, which costs little; fewer splits
    would leave the card idle."""
    return max(1, min(runs, -(-rows // longest)))


def verify_attention(
    q: torch.Tensor,
    layer: LayerStep,
    runs: DecodeRuns,
    out: torch.Tensor,
    config: DecodeConfig | None = None,
) -> None:
    """Attend with a step's first rows, as many as q and out [R, Hq, D] have; the cache holds the
    newest token of each."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    rows, heads, dim = out.shape
    kv_heads, lanes, most_runs = shape.num_kv_heads, head_lanes(dim), runs.starts.shape[0] - 1
    few = fewest_runs(rows, most_runs, runs.longest)
    config = config or decode_config(q.device, lanes, q.element_size(), few)
    # Rows that are even could be left whole, which is a form more of a kernel that graphs, who know
    # nothing of contexts, never ask for.
    splits = choose_splits(
        few,
        kv_heads,
        shape.mask.most_seen(step.max_context_len),
        compute_units(q.device),
        config,
        even=False,
    )
    tile = choose_verify_tile(heads // kv_heads, runs.longest, lanes)
    size = rows * heads * splits.count
    partial = torch.empty((size, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((size,), dtype=torch.float32, device=q.device)
    counts = torch.empty((rows,), dtype=torch.int32, device=q.device)
    tables = step.block_tables
    _verify_kernel[(kv_heads, most_runs * tile.chunks + 1, splits.count)](
        q, cache_pointers(cache), tables, step.context_lens, runs.starts, out,
        (partial, lse, counts), shape.sinks,
        tables.stride(0), rows, tile.places, tile.chunks, splits.least, splits.count,
        shape.scale * math.log2(math.e),
        GROUP=heads // kv_heads, TILE=tile.rows, HKV=kv_heads, D=dim,
        BLOCK_SIZE=cache.block_size, BLOCK_N=config.block_n, **score_constants(shape),
        num_warps=tile.warps(config, lanes, fp8=cache.k_scale is not None),
        num_stages=config.num_stages,
    )  # fmt: skip
    if splits.count > 1:
        padded, warps = combining_tile(splits.count, lanes)
        _combine_verify_kernel[(rows, heads)](
            partial, lse, counts, out, shape.sinks, splits.count,
            HQ=heads, D=dim, PADDED=padded, num_warps=warps,
        )  # fmt: skip
