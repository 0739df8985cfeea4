# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of one query per row over the paged cache, long contexts split among programs.

A program takes one row, one KV head and one split of the row's context; the query heads of the
group share its loads, padded to the tensor core's 16 rows. The grid depends only on sizes the host
knows; how much of the context a split gets is decided from context_lens on the device, so a
captured graph stays right as contexts grow. A row of one split is written at once; the splits of
others are combined by a second kernel (a semaphore and a last program that combines was slower:
docs/results/gpu-log.md). A row of context 0 (a graph's padding) yields zeros.

Split-KV: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.triton_ops.attention_tiles import (
    cache_offsets,
    load_blocks,
    softmax_step,
)
from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.backends.triton_ops.tuning import DecodeConfig, decode_config

# The tensor core's smallest tile of rows.
_MIN_GROUP = 16
# Contexts beyond this are worth splitting however many rows there are.
_LONG_CONTEXT = 1024


@triton.jit
def _split_length(context, least, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tokens of each of a row's splits: whole tiles, and not fewer than `least`."""
    return tl.cdiv(tl.maximum(tl.cdiv(context, SPLITS), least), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["table_stride", "least"])
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, contexts_ptr, out_ptr, partial_ptr, lse_ptr,
    table_stride, least, scale,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    length = _split_length(context, least, SPLITS, BLOCK_N)
    start = split * length
    end = tl.minimum(start + length, context)
    if (start >= context) & (split > 0):
        return

    member = tl.arange(0, GROUP_PADDED)
    dim = tl.arange(0, D)
    real = (member < GROUP)[:, None]
    query_head = row.to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    q = tl.load(q_ptr + query_head[:, None] * D + dim[None, :], mask=real, other=0.0)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, D], tl.float32)
    block = load_blocks(table_ptr, start, end, BLOCK_SIZE, BLOCK_N)
    for first in range(start, end, BLOCK_N):
        inside = first + tl.arange(0, BLOCK_N) < end
        at = cache_offsets(block, first, head, BLOCK_SIZE, BLOCK_N, HKV, D)
        key = tl.load(k_cache_ptr + at, mask=inside[:, None], other=0.0).to(q.dtype)
        value = tl.load(v_cache_ptr + at, mask=inside[:, None], other=0.0).to(q.dtype)
        block = load_blocks(table_ptr, first + BLOCK_N, end, BLOCK_SIZE, BLOCK_N)
        scores = tl.dot(q, tl.trans(key), input_precision="ieee")
        scores = tl.where(inside[None, :], scores, float("-inf"))
        running_max, running_sum, acc = softmax_step(
            scores, value, scale, running_max, running_sum, acc
        )

    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    if context <= length:
        out_at = out_ptr + query_head[:, None] * D + dim[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=real)
    else:
        at = query_head * SPLITS + split
        tl.store(partial_ptr + at[:, None] * D + dim[None, :], result, mask=real)
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=member < GROUP)


@triton.jit(do_not_specialize=["least"])
def _combine_kernel(
    partial_ptr, lse_ptr, contexts_ptr, out_ptr, least,
    HQ: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of one row and head by their sums of exponentials."""
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    length = _split_length(context, least, SPLITS, BLOCK_N)
    if context <= length:
        return
    split = tl.arange(0, SPLITS)
    written = split * length < context
    at = (row.to(tl.int64) * HQ + head) * SPLITS + split
    lse = tl.load(lse_ptr + at, mask=written, other=float("-inf"))
    dim = tl.arange(0, D)
    partial = tl.load(
        partial_ptr + at[:, None] * D + dim[None, :], mask=written[:, None], other=0.0
    )
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    result = tl.sum(weight[:, None] * partial, axis=0) / tl.sum(weight, axis=0)
    result = result.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row.to(tl.int64) * HQ + head) * D + dim, result)


@dataclass(frozen=True, slots=True)
class Splits:
    """count: most splits of a row, a power of two; least: fewest tokens of one."""

    count: int
    least: int


def choose_splits(
    rows: int, kv_heads: int, max_context: int, units: int, config: DecodeConfig
) -> Splits:
    """Enough programs to fill the card when few rows run; when many do, only long rows are split,
    so that the card does not wait for the longest."""
    wanted = config.programs_per_unit * units / (rows * kv_heads)
    count = 1 << max(0, round(math.log2(max(wanted, 1.0))))
    useful = next_power_of_2(math.ceil(max_context / config.block_n))
    least = min(_LONG_CONTEXT, 2 * rows * kv_heads)
    return Splits(max(1, min(count, useful, config.max_splits)), least)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    max_context: int,
    out: torch.Tensor,
    config: DecodeConfig | None = None,
) -> None:
    """q, out [R, Hq, D]: a step's first rows, which block_tables and context_lens begin with."""
    rows, heads, dim = q.shape
    kv_heads = shape.num_kv_heads
    config = config or decode_config(q.device, dim, q.element_size(), rows)
    splits = choose_splits(rows, kv_heads, max_context, compute_units(q.device), config)
    partial = lse = out
    if splits.count > 1:
        size = rows * heads * splits.count
        partial = torch.empty((size, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((size,), dtype=torch.float32, device=q.device)
    least = splits.least if splits.count > 1 else max_context
    group = heads // kv_heads
    _decode_kernel[(rows, kv_heads, splits.count)](
        q, k_cache, v_cache, block_tables, context_lens, out, partial, lse,
        block_tables.stride(0), least, shape.scale * math.log2(math.e),
        GROUP=group, GROUP_PADDED=max(_MIN_GROUP, next_power_of_2(group)), HKV=kv_heads, D=dim,
        BLOCK_SIZE=k_cache.shape[1], BLOCK_N=config.block_n, SPLITS=splits.count,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits.count > 1:
        _combine_kernel[(rows, heads)](
            partial, lse, context_lens, out, least,
            HQ=heads, D=dim, BLOCK_N=config.block_n, SPLITS=splits.count,
            num_warps=2 if splits.count * dim <= 4096 else 4,
        )  # fmt: skip
