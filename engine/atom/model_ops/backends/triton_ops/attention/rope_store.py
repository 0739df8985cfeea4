# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Norm of q and k, rotary embedding and the store of k and v into the paged cache: one kernel.

A program of one warp takes a few tokens and a few neighbouring heads of one kind, q, k or v: every
byte is read and written once, in wide pieces. The cache is contiguous in (block, offset, head,
dim), so a slot number alone determines the place of a token's head. A token with a negative slot is
a graph's padding: its K and V are not written.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import head_scale, quantise_head
from atom.model_ops.backends.triton_ops.launch import cache_pointers, head_lanes, largest_fp8
from atom.model_ops.values import AttentionShape, LayerCache, Rotary

# Heads of a program, at most, and heads times tokens.
_HEADS, _PIECES = 4, 8


@triton.jit
def _store_halves(at, first, second, mask, D: tl.constexpr):
    tl.store(at, first.to(at.dtype.element_ty), mask=mask)
    tl.store(at + D // 2, second.to(at.dtype.element_ty), mask=mask)


@triton.jit
def _store_scaled(
    at, scale_at, first, second, mask, D: tl.constexpr
):  # fmt: skip
    """Store tiles [TOKENS, HEADS, LANES / 2], zeros outside the mask, in fp8 with their scales."""
    dtype = at.dtype.element_ty
    LIMIT: tl.constexpr = largest_fp8(dtype)
    first, second = first.to(tl.float32), second.to(tl.float32)
    # A head has one scale: attention multiplies it into a score, not into each element of a key.
    largest = tl.maximum(
        tl.max(tl.abs(first), axis=2, keep_dims=True),
        tl.max(tl.abs(second), axis=2, keep_dims=True),
    )
    scale = head_scale(largest, LIMIT)
    first, second = (
        quantise_head(first, scale, LIMIT, dtype),
        quantise_head(second, scale, LIMIT, dtype),
    )
    _store_halves(at, first, second, mask, D)
    # A scale is stored where any element of its head is.
    head_mask = tl.max(mask.to(tl.int32), axis=2, keep_dims=True) > 0
    tl.store(scale_at, scale, mask=head_mask)


@triton.jit(do_not_specialize=["first_token", "end_token"])
def _rope_store_kernel(
    qkv_ptr, q_out_ptr, cache, q_weight_ptr, k_weight_ptr, cos_sin_ptr, positions_ptr, slots_ptr,
    first_token, end_token, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    TOKENS: tl.constexpr, KEEP_KEYS: tl.constexpr,
):  # fmt: skip
    """HEADS divides HQ and HKV: a program's heads are all q, all k or all v. Tiles are
    [TOKENS, HEADS, LANES / 2]."""
    k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr = cache
    LANES: tl.constexpr = head_lanes(D)
    first_head = tl.program_id(1) * HEADS
    token = first_token.to(tl.int64) + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < end_token
    present = inside[:, None, None]
    head = tl.arange(0, HEADS)[None, :, None] * D
    half = tl.arange(0, LANES // 2)
    if D != LANES:
        present = present & (half < D // 2)[None, None, :]
    within = head + half[None, None, :]
    row = token[:, None, None] * ((HQ + 2 * HKV) * D)
    source = qkv_ptr + row + first_head * D + within
    # Halves apart: rotation pairs element i with i + D / 2, which are then in one thread.
    first = tl.load(source, mask=present, other=0.0)
    second = tl.load(source + D // 2, mask=present, other=0.0)
    slot = tl.load(slots_ptr + token, mask=inside, other=-1).to(tl.int64)[:, None, None]
    # Values are only copied; their programs end before any cosine is read.
    if first_head >= HQ + HKV:
        v_at = v_cache_ptr + slot * (HKV * D) + (first_head - HQ - HKV) * D + within
        stored = present & (slot >= 0)
        if v_scale_ptr is not None:
            number = first_head - HQ - HKV + tl.arange(0, HEADS)[None, :, None]
            scale_at = v_scale_ptr + slot * HKV + number
            _store_scaled(v_at, scale_at, first, second, stored, D)
        else:
            _store_halves(v_at, first, second, stored, D)
        return

    dtype = q_out_ptr.dtype.element_ty
    position = tl.load(positions_ptr + token, mask=inside, other=0).to(tl.int64)
    angle = cos_sin_ptr + position[:, None, None] * D + half[None, None, :]
    # For a padded head the angles after the last are another position's.
    if D != LANES:
        cos = tl.load(angle, mask=present, other=0.0)
        sin = tl.load(angle + D // 2, mask=present, other=0.0)
    else:
        cos, sin = tl.load(angle), tl.load(angle + D // 2)
    first, second = first.to(tl.float32), second.to(tl.float32)
    if q_weight_ptr is not None:
        weight_ptr = q_weight_ptr if first_head < HQ else k_weight_ptr
        squares = tl.sum(first * first, axis=2) + tl.sum(second * second, axis=2)
        # Over the head's true D; padded lanes hold zeros.
        scale = tl.rsqrt(squares / D + eps)[:, :, None]
        half_real = half < D // 2
        weight = tl.load(weight_ptr + half, mask=half_real, other=0.0)[None, None, :].to(tl.float32)
        first = (weight * (first * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        weight_ptr += D // 2
        weight = tl.load(weight_ptr + half, mask=half_real, other=0.0)[None, None, :].to(tl.float32)
        second = (weight * (second * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    rotated_first = (first * cos - second * sin).to(dtype)
    rotated_second = (second * cos + first * sin).to(dtype)
    if first_head < HQ:
        q_at = q_out_ptr + token[:, None, None] * (HQ * D) + first_head * D + within
        _store_halves(q_at, rotated_first, rotated_second, present, D)
    else:
        # Long prompts attend to keys in qkv by the library, without a look into the cache.
        if KEEP_KEYS:
            _store_halves(source, rotated_first, rotated_second, present, D)
        k_at = k_cache_ptr + slot * (HKV * D) + (first_head - HQ) * D + within
        stored = present & (slot >= 0)
        if k_scale_ptr is not None:
            number = first_head - HQ + tl.arange(0, HEADS)[None, :, None]
            scale_at = k_scale_ptr + slot * HKV + number
            _store_scaled(k_at, scale_at, rotated_first, rotated_second, stored, D)
        else:
            _store_halves(k_at, rotated_first, rotated_second, stored, D)


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
    *,
    first_token: int = 0,
    keep_keys: bool = False,
) -> torch.Tensor:
    """Compute `qk_norm_rope_store` from first_token on; q of earlier tokens is undefined.
    keep_keys: also store the rotated keys in their places of qkv."""
    end_token = qkv.shape[0]
    q = torch.empty(
        (end_token, shape.num_heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device
    )
    heads = math.gcd(shape.num_heads, shape.num_kv_heads, _HEADS)
    tokens = _PIECES // heads
    grid = (
        triton.cdiv(end_token - first_token, tokens),
        (shape.num_heads + 2 * shape.num_kv_heads) // heads,
    )
    q_norm, k_norm = rotary.q_norm, rotary.k_norm
    lanes = head_lanes(shape.head_dim)
    _rope_store_kernel[grid](
        qkv, q, cache_pointers(cache),
        q_norm and q_norm.weight, k_norm and k_norm.weight,
        rotary.cos_sin, rotary.positions, slot_mapping,
        first_token, end_token, q_norm.eps if q_norm else 0.0,
        HQ=shape.num_heads, HKV=shape.num_kv_heads, D=shape.head_dim, HEADS=heads,
        TOKENS=tokens, KEEP_KEYS=keep_keys,
        num_warps=max(1, lanes // 128),
    )  # fmt: skip
    return q
