# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Decode attention on the projection's result: norm, rotation and the cache write included.

Every program norms and rotates its own queries. The program whose split ends the context does the
same for the new key, writes key and value to the cache, and attends to them from registers: no
program waits for another's write. One launch replaces two, which matters if a decode step has few
rows. Rotation pairs element i of a head's first half with element i of its second (NeoX order), so
heads are held as two halves.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.decode import attend_split, decode_launch
from atom.model_ops.backends.triton_ops.attention.paged_tiles import (
    LayerStep,
    cap_scores,
    head_elements,
    head_scale,
    quantise_head,
    real_elements,
)
from atom.model_ops.backends.triton_ops.attention.split_kv import own_split, store_split
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig
from atom.model_ops.backends.triton_ops.launch import (
    cache_pointers,
    group_lanes,
    head_lanes,
    largest_fp8,
)
from atom.model_ops.values import Rotary


@triton.jit
def _rotate(
    first, second, scale, weight_ptr, cos, sin,
    D: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Both halves of heads, [.., LANES / 2] float32 each, normed by `scale` and rotated, in dtype;
    rounded as the reference rounds."""
    if weight_ptr is not None:
        half = tl.arange(0, head_lanes(D) // 2)
        within = half < D // 2
        first_weight = tl.load(weight_ptr + half, mask=within, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + D // 2 + half, mask=within, other=0.0).to(tl.float32)
        # Rounded after the norm and after its weight: prompts go through rope_store.py, and a key
        # must not depend on which kernel wrote it.
        first = (first * scale).to(dtype).to(tl.float32)
        second = (second * scale).to(dtype).to(tl.float32)
        first = (first_weight * first).to(dtype).to(tl.float32)
        second = (second_weight * second).to(dtype).to(tl.float32)
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit
def _rotated_heads(
    heads, rotary, row, head, eps, dtype: tl.constexpr,
    GROUP: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Read one row's queries of a group and its new key and value from `heads` [Hq + 2·Hkv, D] →
    (both halves of queries and of the key, normed and rotated, in dtype; the value)."""
    LANES: tl.constexpr = head_lanes(D)
    q_weight_ptr, k_weight_ptr, cos_sin_ptr, positions_ptr = rotary
    half = tl.arange(0, LANES // 2)
    within = half < D // 2
    member = tl.arange(0, group_lanes(GROUP))
    # The group is padded to a tensor core's rows; padding stays zero through norm and rotation.
    real_half = (member < GROUP)[:, None]
    if D != LANES:
        real_half = real_half & within[None, :]
    query_at = heads + (head * GROUP + member)[:, None] * D + half[None, :]
    key_at = heads + (HKV * GROUP + head) * D + half
    q_first = tl.load(query_at, mask=real_half, other=0.0).to(tl.float32)
    q_second = tl.load(query_at + D // 2, mask=real_half, other=0.0).to(tl.float32)
    k_first = tl.load(key_at, mask=within, other=0.0).to(tl.float32)
    k_second = tl.load(key_at + D // 2, mask=within, other=0.0).to(tl.float32)
    # Values are neither normed nor rotated: loaded whole, in the cache's order of elements.
    value_at = heads + (HKV * GROUP + HKV + head) * D + head_elements(D, LANES)
    new_value = tl.load(value_at, mask=real_elements(D, LANES), other=0.0)
    position = tl.load(positions_ptr + row).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * D + half, mask=within, other=0.0)
    sin = tl.load(cos_sin_ptr + position * D + D // 2 + half, mask=within, other=0.0)
    # Statistics are over the head, whose halves are in two tiles.
    q_squares = tl.sum(q_first * q_first, axis=1) + tl.sum(q_second * q_second, axis=1)
    k_squares = tl.sum(k_first * k_first, axis=0) + tl.sum(k_second * k_second, axis=0)
    q_first, q_second = _rotate(
        q_first, q_second, tl.rsqrt(q_squares / D + eps)[:, None], q_weight_ptr,
        cos[None, :], sin[None, :], D, dtype,
    )  # fmt: skip
    k_first, k_second = _rotate(
        k_first, k_second, tl.rsqrt(k_squares / D + eps), k_weight_ptr, cos, sin, D, dtype
    )
    return q_first, q_second, k_first, k_second, new_value


@triton.jit
def _store_new(
    cache, slot, head, owner, k_first, k_second, new_value, HKV: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Write the new key's halves and value to their slot if this program is its owner → both as the
    cache holds them, and their scales (1 for a plain cache)."""
    k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr = cache
    LANES: tl.constexpr = head_lanes(D)
    half, element = tl.arange(0, LANES // 2), head_elements(D, LANES)
    within = half < D // 2
    stored = k_cache_ptr.dtype.element_ty
    k_scale, v_scale = 1.0, 1.0
    if k_scale_ptr is not None:
        # One scale a token and head, from the largest of both halves.
        LIMIT: tl.constexpr = largest_fp8(stored)
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
    # Padding rows have no slot. No program reads this one before the next step.
    if owner & (slot >= 0):
        new_at = slot * (HKV * D) + head * D
        tl.store(k_cache_ptr + new_at + half, k_first, mask=within)
        tl.store(k_cache_ptr + new_at + D // 2 + half, k_second, mask=within)
        tl.store(v_cache_ptr + new_at + element, new_value, mask=real_elements(D, LANES))
        if k_scale_ptr is not None:
            tl.store(k_scale_ptr + slot * HKV + head, k_scale)
            tl.store(v_scale_ptr + slot * HKV + head, v_scale)
    return k_first, k_second, new_value, k_scale, v_scale


@triton.jit(do_not_specialize=["table_stride", "least", "splits"])
def _decode_append_kernel(
    qkv_ptr, cache, tables_ptr, contexts_ptr, out_ptr, partial_ptr, lse_ptr, rotary, slots_ptr,
    sinks_ptr, table_stride, least, splits, scale, eps,
    GROUP: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, IS_SPLIT: tl.constexpr, WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """qkv_ptr: [R, Hq + 2·Hkv, D], straight from the projection; rotary: weights of the norms of
    queries and keys, None without; cos and sin [.., D] by position; positions [R]."""
    LANES: tl.constexpr = head_lanes(D)
    GROUP_PADDED: tl.constexpr = group_lanes(GROUP)
    dtype = out_ptr.dtype.element_ty
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    low, start, end, length = own_split(
        context, split, least, splits, BLOCK_N, IS_SPLIT, WINDOW, IN_CHUNKS
    )
    if IS_SPLIT:  # noqa: SIM102 - what the compiler knows, and what a program does
        if (start >= context) & (split > 0):
            return
    # 64 bits, as every offset into a tensor of the batch's size.
    query_head = row.to(tl.int64) * (HKV * GROUP) + head * GROUP + tl.arange(0, GROUP_PADDED)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, LANES], tl.float32)
    heads = qkv_ptr + row.to(tl.int64) * ((HKV * GROUP + 2 * HKV) * D)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    q_first, q_second, k_first, k_second, new_value = _rotated_heads(
        heads, rotary, row, head, eps, dtype, GROUP, HKV, D
    )
    # Halves back to one tile in the cache's order: the dot with cached keys needs whole heads.
    q = tl.reshape(tl.permute(tl.join(q_first, q_second), (0, 2, 1)), (GROUP_PADDED, LANES))
    # The program whose split ends the context has the newest token, and no other reads it.
    owner = (end == context) & (context > 0)
    k_first, k_second, new_value, k_scale, v_scale = _store_new(
        cache, slot, head, owner, k_first, k_second, new_value, HKV, D
    )
    # Scored as the cache holds it, rounded alike: a later step that reads it sees the same key.
    new_scores = tl.sum(q_first.to(tl.float32) * k_first.to(dtype).to(tl.float32)[None, :], axis=1)
    new_scores += tl.sum(
        q_second.to(tl.float32) * k_second.to(dtype).to(tl.float32)[None, :], axis=1
    )
    held_value = new_value.to(dtype).to(tl.float32)
    if cache[2] is not None:
        new_scores = new_scores * k_scale
        held_value = held_value * v_scale
    new_scores = cap_scores(new_scores, scale, SOFTCAP)
    # It begins the softmax, with weight exp2(0) = 1: the loop over the cache then has no special
    # last tile.
    running_max = tl.where(owner, new_scores * scale, running_max)
    running_sum += tl.where(owner, 1.0, 0.0)
    acc += tl.where(owner, held_value, 0.0)[None, :]
    end = tl.where(owner, end - 1, end)
    running_max, running_sum, acc = attend_split(
        q, cache, table_ptr, head, start, low, end, scale, running_max, running_sum, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, SOFTCAP,
    )  # fmt: skip
    store_split(
        out_ptr, partial_ptr, lse_ptr, sinks_ptr, query_head, head, context - low, split, length,
        splits, running_max, running_sum, acc, GROUP, D,
    )  # fmt: skip


def decode_append_attention(
    qkv: torch.Tensor,
    layer: LayerStep,
    out: torch.Tensor,
    rotary: Rotary,
    config: DecodeConfig | None = None,
) -> None:
    """Attend with a step's first rows, as many as out [R, Hq, D] has, on the projection's result:
    qkv [R, (Hq + 2·Hkv)·D] contiguous. The newest keys and values are written to the cache."""
    launch = decode_launch(layer, out, qkv.element_size(), config)
    shape, step, splits = layer.shape, layer.step, launch.splits
    q_norm, k_norm = rotary.q_norm, rotary.k_norm
    weights = q_norm and q_norm.weight, k_norm and k_norm.weight
    _decode_append_kernel[launch.grid](
        qkv, cache_pointers(layer.cache), step.block_tables, step.context_lens, out,
        launch.partial, launch.lse, (*weights, rotary.cos_sin, rotary.positions),
        step.slot_mapping, shape.sinks, step.block_tables.stride(0), splits.least, splits.count,
        shape.scale * math.log2(math.e), q_norm.eps if q_norm else 0.0,
        **launch.constants, **launch.options,
    )  # fmt: skip
    launch.combine(layer, out)
