# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of one query per row over the paged cache: split-KV, then a reduction of the splits.

A program takes one row, one KV head and one split of the row's context; the query heads of the
group share its loads, padded to the tensor core's 16 rows. The grid depends only on sizes the host
knows; how much of the context a split gets is decided from context_lens on the device, so a
captured graph stays right as contexts grow. A row of context 0 (a graph's padding) yields zeros.

Split-KV: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.triton_ops.attention_tiles import cache_offsets, softmax_step
from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.backends.triton_ops.tuning import DecodeConfig, decode_config

# The tensor core's smallest tile of rows.
_MIN_GROUP = 16


@triton.jit
def _split_length(context, splits, BLOCK_N: tl.constexpr):
    return tl.cdiv(tl.cdiv(context, splits), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["table_stride", "splits"])
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, contexts_ptr, out_ptr, partial_ptr, lse_ptr,
    table_stride, splits, scale,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    start, end = 0, context
    if SPLIT:
        length = _split_length(context, splits, BLOCK_N)
        start = split * length
        end = tl.minimum(start + length, context)
        if start >= context:
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
    for first in range(start, end, BLOCK_N):
        token = first + tl.arange(0, BLOCK_N)
        inside = token < end
        at = cache_offsets(table_ptr, token, inside, head, BLOCK_SIZE, HKV, D, True) + dim[None, :]
        key = tl.load(k_cache_ptr + at, mask=inside[:, None], other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        value = tl.load(v_cache_ptr + at, mask=inside[:, None], other=0.0).to(q.dtype)
        running_max, running_sum, acc = softmax_step(scores, value, running_max, running_sum, acc)

    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    if SPLIT:
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * D + dim[None, :], result, mask=real)
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=member < GROUP)
    else:
        result = result.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + query_head[:, None] * D + dim[None, :], result, mask=real)


@triton.jit
def _reduce_kernel(
    partial_ptr, lse_ptr, contexts_ptr, out_ptr,
    HQ: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts_ptr + row)
    length = _split_length(context, SPLITS, BLOCK_N)
    split = tl.arange(0, SPLITS)
    written = split * length < context
    at = (row.to(tl.int64) * HQ + head) * SPLITS + split
    lse = tl.load(lse_ptr + at, mask=written, other=float("-inf"))
    highest = tl.max(lse, axis=0)
    weight = tl.exp2(lse - tl.where(context > 0, highest, 0.0))
    dim = tl.arange(0, D)
    partial = tl.load(
        partial_ptr + at[:, None] * D + dim[None, :], mask=written[:, None], other=0.0
    )
    total = tl.sum(weight, axis=0)
    result = tl.sum(weight[:, None] * partial, axis=0) / tl.where(total > 0, total, 1.0)
    result = result.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row.to(tl.int64) * HQ + head) * D + dim, result)


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
    partial = lse = out
    if splits > 1:
        size = rows * shape.num_heads * splits
        partial = torch.empty((size, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((size,), dtype=torch.float32, device=q.device)
    group = shape.num_heads // shape.num_kv_heads
    _decode_kernel[(rows, shape.num_kv_heads, splits)](
        q, k_cache, v_cache, block_tables, context_lens, out, partial, lse,
        block_tables.stride(0), splits, shape.scale * math.log2(math.e),
        GROUP=group, GROUP_PADDED=max(_MIN_GROUP, next_power_of_2(group)),
        HKV=shape.num_kv_heads, D=dim, BLOCK_SIZE=k_cache.shape[1], BLOCK_N=config.block_n,
        SPLIT=splits > 1, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits > 1:
        _reduce_kernel[(rows, shape.num_heads)](
            partial, lse, context_lens, out,
            HQ=shape.num_heads, D=dim, BLOCK_N=config.block_n, SPLITS=splits,
            num_warps=2 if splits * dim <= 4096 else 4,
        )  # fmt: skip
