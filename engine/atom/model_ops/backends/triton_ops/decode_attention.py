# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of one query per row over the paged cache, each row's context split among programs.

A program takes one row, one KV head and one split of the row's context; the query heads of the
group share its loads, padded to the tensor core's 16 rows. The grid depends only on sizes the host
knows; how much of the context a split gets is decided from context_lens on the device, so a
captured graph stays right as contexts grow. The last split of a row to finish combines them all. A
row of context 0 (a graph's padding) yields zeros.

Split-KV: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import math
from functools import cache

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


@triton.jit
def _split_length(context, splits, BLOCK_N: tl.constexpr):
    return tl.cdiv(tl.cdiv(context, splits), BLOCK_N) * BLOCK_N


@triton.jit
def _reduce_splits(
    partial_ptr, lse_ptr, out_ptr, row, head, active,
    GROUP: tl.constexpr, GROUP_ROUNDED: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Weigh the results of a row's splits by their sums of exponentials. Loads go past the first
    cache level, which does not see other programs' stores."""
    TILE: tl.constexpr = min(SPLITS, 8)
    member = tl.arange(0, GROUP_ROUNDED)
    present = (member < GROUP)[None, :]
    query_head = row.to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    every = tl.arange(0, SPLITS)
    lse = tl.load(
        lse_ptr + query_head[None, :] * SPLITS + every[:, None],
        mask=(every < active)[:, None] & present, other=float("-inf"), cache_modifier=".cg",
    )  # fmt: skip
    highest = tl.maximum(tl.max(lse, axis=0), -1e30)
    dim = tl.arange(0, D)
    total = tl.zeros([GROUP_ROUNDED], tl.float32)
    acc = tl.zeros([GROUP_ROUNDED, D], tl.float32)
    for first in range(0, active, TILE):
        split = first + tl.arange(0, TILE)
        mask = (split < active)[:, None] & present
        at = query_head[None, :] * SPLITS + split[:, None]
        tile_lse = tl.load(lse_ptr + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(tile_lse - highest[None, :])
        partial = tl.load(
            partial_ptr + at[:, :, None] * D + dim[None, None, :], mask=mask[:, :, None],
            other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        total += tl.sum(weight, axis=0)
        acc += tl.sum(weight[:, :, None] * partial, axis=0)
    result = (acc / tl.where(total > 0, total, 1.0)[:, None]).to(out_ptr.dtype.element_ty)
    at_out = out_ptr + query_head[:, None] * D + dim[None, :]
    tl.store(at_out, result, mask=(member < GROUP)[:, None])


@triton.jit(do_not_specialize=["table_stride"])
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, contexts_ptr, out_ptr, partial_ptr, lse_ptr,
    arrivals_ptr, table_stride, scale,
    GROUP: tl.constexpr, GROUP_ROUNDED: tl.constexpr, GROUP_PADDED: tl.constexpr,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    start, end = 0, context
    if SPLITS > 1:
        length = _split_length(context, SPLITS, BLOCK_N)
        start = split * length
        end = tl.minimum(start + length, context)
        # The first split of an empty row stays, to write zeros.
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
    if SPLITS > 1:
        at = query_head * SPLITS + split
        tl.store(partial_ptr + at[:, None] * D + dim[None, :], result, mask=real)
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=member < GROUP)
        # Everything above must be in memory before this program says so.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + row * HKV + head, 1, sem="acq_rel")
        active = tl.maximum(tl.cdiv(context, tl.maximum(length, 1)), 1)
        if arrived == active - 1:
            tl.store(arrivals_ptr + row * HKV + head, 0)
            _reduce_splits(
                partial_ptr,
                lse_ptr,
                out_ptr,
                row,
                head,
                active,
                GROUP,
                GROUP_ROUNDED,
                HKV,
                D,
                SPLITS,
            )
    else:
        result = result.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + query_head[:, None] * D + dim[None, :], result, mask=real)


def choose_splits(
    rows: int, kv_heads: int, max_context: int, units: int, config: DecodeConfig
) -> int:
    """Splits per (row, head), a power of two: enough programs to fill the card, none of them with
    less than one tile of the longest context."""
    wanted = config.programs_per_unit * units / (rows * kv_heads)
    useful = math.ceil(max_context / config.block_n)
    splits = 1 << max(0, round(math.log2(max(wanted, 1.0))))
    return max(1, min(splits, next_power_of_2(useful), config.max_splits))


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
    rows, dim = q.shape[0], shape.head_dim
    config = config or decode_config(q.device, dim, q.element_size())
    splits = choose_splits(rows, shape.num_kv_heads, max_context, compute_units(q.device), config)
    heads = shape.num_heads
    partial = lse = arrivals = out
    if splits > 1:
        size = rows * heads * splits
        partial = torch.empty((size, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((size,), dtype=torch.float32, device=q.device)
        arrivals = _arrivals(q.device, next_power_of_2(rows * shape.num_kv_heads))
    group = heads // shape.num_kv_heads
    rounded = next_power_of_2(group)
    _decode_kernel[(rows, shape.num_kv_heads, splits)](
        q, k_cache, v_cache, block_tables, context_lens, out, partial, lse, arrivals,
        block_tables.stride(0), shape.scale * math.log2(math.e),
        GROUP=group, GROUP_ROUNDED=rounded, GROUP_PADDED=max(_MIN_GROUP, rounded),
        HKV=shape.num_kv_heads, D=dim, BLOCK_SIZE=k_cache.shape[1], BLOCK_N=config.block_n,
        SPLITS=splits, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


@cache
def _arrivals(device: torch.device, count: int) -> torch.Tensor:
    """How many splits of each (row, KV head) have arrived: zero between launches, because the last
    to arrive puts it back. Launches that share it must follow each other on one stream, and it is
    made outside of captures: a graph is captured after the same step ran once."""
    return torch.zeros(count, dtype=torch.int32, device=device)
