# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""MLA of one absorbed query per row, long contexts split among programs.

A program takes one row, a tile of its query heads and one split of its context. Queries are
absorbed into the latent; the results are weighted latents. Contexts are split, and splits combined,
as in decode.py: the grid depends only on sizes that the host knows, so a captured graph stays valid
as contexts grow, and a row of context 0 (padding) yields zeros.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.mla_tiles import (
    MlaLaunch,
    attend_entries,
    load_part,
    mla_launch,
    tile_in_registers,
)
from atom.model_ops.backends.triton_ops.attention.split_kv import (
    SplitParts,
    choose_splits,
    combine_splits,
    split_length,
)
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig
from atom.model_ops.backends.triton_ops.launch import compute_units, head_lanes
from atom.model_ops.values import LatentCache, LatentShape
from atom.utils.forward_context import AttentionMetaData

# A split costs RANK float32 per head: few of them.
_MOST_SPLITS = 64
# Heads from which a program is bound by its products, and not by its reads.
_MANY_HEADS = 64


@triton.jit(do_not_specialize=["table_stride", "q_rope_stride", "least", "splits"])
def _mla_decode_kernel(
    absorbed_ptr, q_rope_ptr, cache_ptr, key_cache_ptr, entry_scale_ptr, tables_ptr, contexts_ptr,
    out_ptr, partial_ptr, lse_ptr,
    table_stride, q_rope_stride, least, splits, scale,
    HQ: tl.constexpr, HEAD: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """absorbed_ptr [R, Hq, RANK]; q_rope_ptr: the rotated parts of queries, HEAD elements from head
    to head."""
    RANK_LANES: tl.constexpr = head_lanes(RANK)
    ROPE_LANES: tl.constexpr = head_lanes(ROPE)
    # Tiles of heads are the fastest axis: those of a row run together and find its entries in L2.
    tile, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    if IS_SPLIT:
        length = split_length(context, least, splits, BLOCK_N)
        start = split * length
        end = tl.minimum(start + length, context)
        if (start >= context) & (split > 0):
            return
    else:
        start, end, length = 0, context, context
    head = tile * HEADS + tl.arange(0, HEADS)
    real = head < HQ
    query_head = row * HQ + head
    absorbed = load_part(absorbed_ptr + query_head * RANK, real, RANK, RANK_LANES)
    q_rope = load_part(q_rope_ptr + row * q_rope_stride + head * HEAD, real, ROPE, ROPE_LANES)
    running_max = tl.full([HEADS], float("-inf"), tl.float32)
    running_sum = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, RANK_LANES], tl.float32)
    table_ptr = tables_ptr + row * table_stride
    running_max, running_sum, acc = attend_entries(
        absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, head, start, end,
        scale, running_max, running_sum, acc,
        RANK, ROPE, BLOCK_SIZE, BLOCK_N, False,
    )  # fmt: skip
    # 0 of a padding row, whose sum is 0.
    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    lane = tl.arange(0, RANK_LANES)
    stored = real[:, None] & (lane < RANK)[None, :]
    if context <= length:
        out_at = out_ptr + query_head[:, None] * RANK + lane[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=stored)
    else:
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * RANK + lane[None, :], result, mask=stored)
        # Base 2, as scores are.
        tl.store(lse_ptr + at, running_max + tl.log2(total), mask=real)


def mla_config(launch: MlaLaunch, device: torch.device) -> DecodeConfig:
    """Return the tiles of a decode, measured on an H200 with 16 and 128 heads in bfloat16; other
    cards' local memory holds two of them."""
    is_measured = device.type == "cuda" and not torch.version.hip
    if not is_measured or torch.cuda.get_device_capability(device) < (9, 0):
        return DecodeConfig(launch.block_n, launch.num_warps, 2, 4, _MOST_SPLITS)
    if launch.heads >= _MANY_HEADS:
        return DecodeConfig(64, 8, 2, 4, _MOST_SPLITS)
    return DecodeConfig(launch.block_n, launch.num_warps, 3, 2, _MOST_SPLITS)


def mla_decode(
    absorbed: torch.Tensor,
    q_rope: torch.Tensor,
    shape: LatentShape,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    """Attend with the step's first rows, as many as absorbed [R, Hq, rank] and q_rope [R, Hq, rope]
    have → weighted latents [R, Hq, rank]."""
    rows, heads = absorbed.shape[:2]
    launch = mla_launch(shape, absorbed.dtype)
    config = mla_config(launch, absorbed.device)
    tile = tile_in_registers(config.block_n, config.num_warps, more=cache.scale is not None)
    splits = choose_splits(
        rows, launch.head_tiles, step.max_context_len, compute_units(absorbed.device), config,
        even=step.even_contexts,
    )  # fmt: skip
    out = torch.empty_like(absorbed)
    partial = lse = out
    if not splits.whole:
        size = rows * heads * splits.count
        partial = torch.empty((size, shape.kv_rank), dtype=torch.float32, device=absorbed.device)
        lse = torch.empty((size,), dtype=torch.float32, device=absorbed.device)
    tables = step.block_tables
    _mla_decode_kernel[(launch.head_tiles, rows, splits.count)](
        absorbed, q_rope, cache.entries, cache.keys, cache.scale, tables, step.context_lens,
        out, partial, lse,
        tables.stride(0), q_rope.stride(0), splits.least, splits.count,
        shape.scale * math.log2(math.e),
        HQ=heads, HEAD=shape.head_dim, RANK=shape.kv_rank, ROPE=shape.rope_dim,
        HEADS=launch.heads,
        BLOCK_SIZE=cache.block_size, BLOCK_N=tile.block_n, IS_SPLIT=not splits.whole,
        num_warps=tile.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits.count > 1:
        parts = SplitParts(partial, lse, tile.block_n)
        combine_splits(parts, step.context_lens, out, splits)
    return out
