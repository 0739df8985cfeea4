# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of one query per row over the paged cache, long contexts split among programs.

A program takes one row, one KV head and one split of the row's context; the query heads of the
group share its loads, padded to the tensor core's 16 rows. It takes queries and a cache that
already holds the row's newest token, or what the projection gave: then every program norms and
rotates its own queries, and the one whose split ends the context does the same for the new key,
writes key and value to the cache, and attends to them from registers.

The grid depends only on sizes the host knows; how much of the context a split gets is decided from
context_lens on the device, so a captured graph stays right as contexts grow. A row of one split is
written at once; the splits of others are combined by a second kernel (a semaphore and a last
program that combines was slower: docs/results/gpu/attention.md). A row of context 0 (a graph's
padding) yields zeros. With a window, splits divide the tokens that are in it. Heads of a row run
side by side and rows in their order: with the longest row first, the short ones fill the gaps at
the end.

Split-KV: Flash-Decoding (Dao et al. 2023).
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
    cache_offsets,
    cap_scores,
    first_seen,
    head_elements,
    head_scale,
    load_blocks,
    load_scales,
    load_sinks,
    load_tile,
    quantise_head,
    real_elements,
    softmax_step,
)
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig, decode_config
from atom.model_ops.backends.triton_ops.launch import (
    compute_units,
    fp8_constants,
    head_lanes,
    next_power_of_2,
)
from atom.model_ops.values import Rotary

# The tensor core's smallest tile of rows.
MIN_GROUP = 16
# Programs per multiprocessor that keep the memory busy without splitting anything.
_ENOUGH_PROGRAMS = 3
# Where they do, and a row may still outlast the rest: how many splits, and no shorter than what.
_LONG_ROW_SPLITS = 16
_LONG_CONTEXT = 1024
# Splits that a program combines, at most; more than any table asks for.
_COMBINED = (8, 16, 64, 1024)


@triton.jit
def split_length(context, least, splits, BLOCK_N: tl.constexpr):
    """Tokens of each of a row's splits: whole tiles, and not fewer than `least`."""
    return tl.cdiv(tl.maximum(tl.cdiv(context, splits), least), BLOCK_N) * BLOCK_N


@triton.jit
def _rotate(
    first, second, scale, weight_ptr, cos, sin,
    D: tl.constexpr, LANES: tl.constexpr, HAS_NORM: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Both halves of heads, [.., LANES / 2] float32 each, normed by `scale` and rotated, in dtype;
    rounded as the reference rounds."""
    if HAS_NORM:
        half = tl.arange(0, LANES // 2)
        within = half < D // 2
        first_weight = tl.load(weight_ptr + half, mask=within, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + D // 2 + half, mask=within, other=0.0).to(tl.float32)
        first = (first * scale).to(dtype).to(tl.float32)
        second = (second * scale).to(dtype).to(tl.float32)
        first = (first_weight * first).to(dtype).to(tl.float32)
        second = (second_weight * second).to(dtype).to(tl.float32)
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit(do_not_specialize=["table_stride", "least", "splits"])
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, contexts_ptr, out_ptr,
    partial_ptr, lse_ptr,
    q_weight_ptr, k_weight_ptr, cos_sin_ptr, positions_ptr, slots_ptr, sinks_ptr,
    table_stride, least, splits, scale, eps,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    LANES: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr, SOFTCAP: tl.constexpr, APPEND: tl.constexpr,
    HAS_NORM: tl.constexpr, FP8: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """q_ptr: [R, Hq, D]; with APPEND [R, Hq + 2·Hkv, D], straight from the projection. How many
    splits there are is no constant: it follows from the number of rows, and a step may have any."""
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    low = 0
    if WINDOW:
        low = first_seen(context, WINDOW, IN_CHUNKS)
    if IS_SPLIT:
        length = split_length(context - low, least, splits, BLOCK_N)
        start = low + split * length
        end = tl.minimum(start + length, context)
        if (start >= context) & (split > 0):
            return
    else:
        start, end, length = low, context, context

    PADDED: tl.constexpr = D != LANES
    dtype = out_ptr.dtype.element_ty
    member = tl.arange(0, GROUP_PADDED)
    element = head_elements(D, LANES)
    real_element = real_elements(D, LANES)
    real = (member < GROUP)[:, None]
    stored_lanes = real
    if PADDED:
        stored_lanes = real & real_element[None, :]
    query_head = row.to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, LANES], tl.float32)
    if APPEND:
        half = tl.arange(0, LANES // 2)
        within = half < D // 2
        real_half = real
        if PADDED:
            real_half = real & within[None, :]
        heads = q_ptr + row.to(tl.int64) * ((HKV * GROUP + 2 * HKV) * D)
        query_at = heads + (head * GROUP + member)[:, None] * D + half[None, :]
        key_at = heads + (HKV * GROUP + head) * D + half
        q_first = tl.load(query_at, mask=real_half, other=0.0).to(tl.float32)
        q_second = tl.load(query_at + D // 2, mask=real_half, other=0.0).to(tl.float32)
        k_first = tl.load(key_at, mask=within, other=0.0).to(tl.float32)
        k_second = tl.load(key_at + D // 2, mask=within, other=0.0).to(tl.float32)
        value_at = heads + (HKV * GROUP + HKV + head) * D + element
        new_value = tl.load(value_at, mask=real_element, other=0.0)
        position = tl.load(positions_ptr + row).to(tl.int64)
        slot = tl.load(slots_ptr + row).to(tl.int64)
        cos = tl.load(cos_sin_ptr + position * D + half, mask=within, other=0.0)
        sin = tl.load(cos_sin_ptr + position * D + D // 2 + half, mask=within, other=0.0)
        q_squares = tl.sum(q_first * q_first, axis=1) + tl.sum(q_second * q_second, axis=1)
        k_squares = tl.sum(k_first * k_first, axis=0) + tl.sum(k_second * k_second, axis=0)
        q_first, q_second = _rotate(
            q_first, q_second, tl.rsqrt(q_squares / D + eps)[:, None], q_weight_ptr,
            cos[None, :], sin[None, :], D, LANES, HAS_NORM, dtype,
        )  # fmt: skip
        k_first, k_second = _rotate(
            k_first, k_second, tl.rsqrt(k_squares / D + eps), k_weight_ptr, cos, sin,
            D, LANES, HAS_NORM, dtype,
        )  # fmt: skip
        q = tl.reshape(tl.permute(tl.join(q_first, q_second), (0, 2, 1)), (GROUP_PADDED, LANES))
        # As the cache holds them: it may have another dtype.
        stored = k_cache_ptr.dtype.element_ty
        if FP8:
            k_first, k_second = k_first.to(tl.float32), k_second.to(tl.float32)
            new_value = new_value.to(tl.float32)
            largest = tl.maximum(tl.max(tl.abs(k_first), axis=0), tl.max(tl.abs(k_second), axis=0))
            k_scale = head_scale(largest, LIMIT)
            v_scale = head_scale(tl.max(tl.abs(new_value), axis=0), LIMIT)
            k_first = quantise_head(k_first, k_scale, LIMIT, stored)
            k_second = quantise_head(k_second, k_scale, LIMIT, stored)
            new_value = quantise_head(new_value, v_scale, LIMIT, stored)
        else:
            k_first, k_second = k_first.to(stored), k_second.to(stored)
            new_value = new_value.to(stored)
        owner = (end == context) & (context > 0)
        if owner & (slot >= 0):
            new_at = slot * (HKV * D) + head * D
            tl.store(k_cache_ptr + new_at + half, k_first, mask=within)
            tl.store(k_cache_ptr + new_at + D // 2 + half, k_second, mask=within)
            tl.store(v_cache_ptr + new_at + element, new_value, mask=real_element)
            if FP8:
                tl.store(k_scale_ptr + slot * HKV + head, k_scale)
                tl.store(v_scale_ptr + slot * HKV + head, v_scale)
        new_scores = tl.sum(
            q_first.to(tl.float32) * k_first.to(dtype).to(tl.float32)[None, :], axis=1
        )
        new_scores += tl.sum(
            q_second.to(tl.float32) * k_second.to(dtype).to(tl.float32)[None, :], axis=1
        )
        held_value = new_value.to(dtype).to(tl.float32)
        if FP8:
            new_scores = new_scores * k_scale
            held_value = held_value * v_scale
        new_scores = cap_scores(new_scores, scale, SOFTCAP)
        running_max = tl.where(owner, new_scores * scale, running_max)
        running_sum += tl.where(owner, 1.0, 0.0)
        acc += tl.where(owner, held_value, 0.0)[None, :]
        end = tl.where(owner, end - 1, end)
    else:
        query_at = q_ptr + query_head[:, None] * D + element[None, :]
        q = tl.load(query_at, mask=stored_lanes, other=0.0)

    block = load_blocks(table_ptr, start, low, end, BLOCK_SIZE, BLOCK_N, False)
    for first in range(start, end, BLOCK_N):
        inside = first + tl.arange(0, BLOCK_N) < end
        at = cache_offsets(block, first, head, element, BLOCK_SIZE, BLOCK_N, HKV, D)
        key = load_tile(k_cache_ptr + at, inside, real_element, True, PADDED).to(dtype)
        value = load_tile(v_cache_ptr + at, inside, real_element, True, PADDED).to(dtype)
        value_scale = 1.0
        scores = tl.dot(q, tl.trans(key), input_precision="ieee")
        if FP8:
            key_scale = load_scales(
                k_scale_ptr, block, first, head, inside, BLOCK_SIZE, BLOCK_N, HKV
            )
            value_scale = load_scales(
                v_scale_ptr, block, first, head, inside, BLOCK_SIZE, BLOCK_N, HKV
            )
            scores = scores * key_scale[None, :]
        block = load_blocks(table_ptr, first + BLOCK_N, low, end, BLOCK_SIZE, BLOCK_N, False)
        scores = cap_scores(scores, scale, SOFTCAP)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        running_max, running_sum, acc = softmax_step(
            scores, value, value_scale, scale, running_max, running_sum, acc, False, FP8
        )

    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, head * GROUP + member, member < GROUP)
        # Of a row that is split they count once, where its splits are combined.
        sinks = tl.where(context - low <= length, sinks, float("-inf"))
        running_max, running_sum, acc = add_sinks(sinks, running_max, running_sum, acc)
    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    if context - low <= length:
        out_at = out_ptr + query_head[:, None] * D + element[None, :]
        tl.store(out_at, result.to(dtype), mask=stored_lanes)
    else:
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * D + element[None, :], result, mask=stored_lanes)
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=member < GROUP)


@triton.jit
def weigh_parts(
    partial_ptr, lse_ptr, sinks_ptr, at, written, head,
    HQ: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One row's and head's attention [LANES] of its parts `at`, those `written`, weighed by their
    sums of exponentials."""
    lse = tl.load(lse_ptr + at, mask=written, other=float("-inf"))
    element = tl.arange(0, LANES)
    within = element < D
    partial = tl.load(
        partial_ptr + at[:, None] * D + element[None, :],
        mask=written[:, None] & within[None, :], other=0.0,
    )  # fmt: skip
    highest = tl.max(lse, axis=0)
    total = 0.0
    if sinks_ptr is not None:
        sink = load_sinks(sinks_ptr, head, head < HQ)
        highest = tl.maximum(highest, sink)
        total = tl.exp2(sink - highest)
    weight = tl.exp2(lse - highest)
    total += tl.sum(weight, axis=0)
    return tl.sum(weight[:, None] * partial, axis=0) / total


@triton.jit(do_not_specialize=["least", "splits"])
def _combine_kernel(
    partial_ptr, lse_ptr, contexts_ptr, out_ptr, sinks_ptr, least, splits,
    HQ: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of one row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    if IN_CHUNKS:
        context -= first_seen(context, WINDOW, True)
    elif WINDOW:
        context = tl.minimum(context, WINDOW)
    length = split_length(context, least, splits, BLOCK_N)
    if context <= length:
        return
    split = tl.arange(0, PADDED)
    written = (split < splits) & (split * length < context)
    at = (row.to(tl.int64) * HQ + head) * splits + split
    result = weigh_parts(partial_ptr, lse_ptr, sinks_ptr, at, written, head, HQ, D, LANES)
    result = result.to(out_ptr.dtype.element_ty)
    element = tl.arange(0, LANES)
    tl.store(out_ptr + (row.to(tl.int64) * HQ + head) * D + element, result, mask=element < D)


@dataclass(frozen=True, slots=True)
class Splits:
    """count: most splits of a row, a power of two; least: fewest tokens of one. whole: rows are not
    split at all, which takes a kernel that cannot."""

    count: int
    least: int
    whole: bool = False


def choose_splits(
    rows: int, kv_heads: int, max_context: int, units: int, config: DecodeConfig, *, even: bool
) -> Splits:
    """Enough programs to fill the card. Rows that fill it by themselves are split only where one of
    them could outlast all others; `even` says that none does."""
    programs = rows * kv_heads
    if even and programs >= _ENOUGH_PROGRAMS * units:
        return Splits(1, max_context, whole=True)
    wanted = config.programs_per_unit * units / programs
    if programs >= _ENOUGH_PROGRAMS * units:
        wanted = _LONG_ROW_SPLITS
    count = 1 << max(0, round(math.log2(max(wanted, 1.0))))
    useful = next_power_of_2(math.ceil(max_context / config.block_n))
    count = max(1, min(count, useful, config.max_splits))
    return Splits(count, min(_LONG_CONTEXT, 2 * programs) if count > 1 else max_context)


def decode_attention(
    q: torch.Tensor,
    layer: LayerStep,
    out: torch.Tensor,
    rotary: Rotary | None = None,
    config: DecodeConfig | None = None,
) -> None:
    """Attention of a step's first rows, as many as out [R, Hq, D] has.

    Without `rotary` q is [R, Hq, D] and the cache holds the rows' newest tokens. With it q is what
    the projection gave, [R, (Hq + 2·Hkv)·D] contiguous, and newest keys and values are written to
    the cache on the way."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    rows, heads, dim = out.shape
    kv_heads, lanes = shape.num_kv_heads, head_lanes(dim)
    config = config or decode_config(q.device, lanes, q.element_size(), rows)
    splits = choose_splits(
        rows, kv_heads, shape.most_seen(step.max_context_len), compute_units(q.device), config,
        even=step.even_contexts,
    )  # fmt: skip
    partial = lse = out
    if not splits.whole:
        size = rows * heads * splits.count
        partial = torch.empty((size, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((size,), dtype=torch.float32, device=q.device)
    group = heads // kv_heads
    tables, window = step.block_tables, shape.window or 0
    q_norm, k_norm = (rotary.q_norm, rotary.k_norm) if rotary else (None, None)
    _decode_kernel[(kv_heads, rows, splits.count)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, tables, step.context_lens, out,
        partial, lse,
        q_norm and q_norm.weight, k_norm and k_norm.weight, rotary and rotary.cos_sin,
        rotary and rotary.positions, rotary and step.slot_mapping, shape.sinks,
        tables.stride(0), splits.least, splits.count, shape.scale * math.log2(math.e),
        q_norm.eps if q_norm else 0.0,
        GROUP=group, GROUP_PADDED=max(MIN_GROUP, next_power_of_2(group)), HKV=kv_heads, D=dim,
        LANES=lanes, BLOCK_SIZE=cache.block_size, BLOCK_N=config.block_n,
        IS_SPLIT=not splits.whole, WINDOW=window, IN_CHUNKS=shape.in_chunks,
        SOFTCAP=shape.softcap or 0.0, APPEND=rotary is not None, HAS_NORM=q_norm is not None,
        **fp8_constants(cache), num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits.count > 1:
        parts = SplitParts(partial, lse, config.block_n, window, shape.in_chunks, shape.sinks)
        combine_splits(parts, step.context_lens, out, splits)


@dataclass(frozen=True, slots=True)
class SplitParts:
    """What the splits of rows gave: partial [rows · heads · splits, D] with lse, logarithms of
    their sums; splits are whole tiles of block_n tokens, of the window's if there is one."""

    partial: torch.Tensor
    lse: torch.Tensor
    block_n: int
    window: int = 0
    in_chunks: bool = False
    sinks: torch.Tensor | None = None


def combine_splits(
    parts: SplitParts, contexts: torch.Tensor, out: torch.Tensor, splits: Splits
) -> None:
    """Weigh the parts into out [rows, heads, D]; rows of one split are there already."""
    rows, heads, dim = out.shape
    lanes = head_lanes(dim)
    padded, warps = combining_tile(splits.count, lanes)
    _combine_kernel[(rows, heads)](
        parts.partial, parts.lse, contexts, out, parts.sinks, splits.least, splits.count,
        HQ=heads, D=dim, LANES=lanes, BLOCK_N=parts.block_n, WINDOW=parts.window,
        IN_CHUNKS=parts.in_chunks, PADDED=padded, num_warps=warps,
    )  # fmt: skip


def combining_tile(splits: int, lanes: int) -> tuple[int, int]:
    """Splits that a program combines, and its warps: of few sizes, so that few kernels serve any
    number of rows."""
    padded = next(size for size in _COMBINED if size >= splits)
    return padded, 2 if padded * lanes <= 4096 else 4 if padded * lanes <= 16384 else 8
