# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Norm of q and k, rotary embedding and the store of k and v into the paged cache: one kernel.

A program takes one token and a few neighbouring heads, whichever of q, k and v they are. The cache
is contiguous in (block, offset, head, dim), so a slot number alone says where a token's head goes.
A token whose slot is negative is a graph's padding: it writes no K and no V.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import AttentionShape


@triton.jit(do_not_specialize=["first_token"])
def _rope_store_kernel(
    qkv_ptr, q_out_ptr, k_cache_ptr, v_cache_ptr, q_weight_ptr, k_weight_ptr, cos_sin_ptr,
    positions_ptr, slots_ptr, first_token, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr, KEEP_KEYS: tl.constexpr,
):  # fmt: skip
    token = first_token.to(tl.int64) + tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, D // 2)
    dtype = q_out_ptr.dtype.element_ty
    present = (head < HQ + 2 * HKV)[:, None]
    source = qkv_ptr + token * ((HQ + 2 * HKV) * D) + head[:, None] * D + half[None, :]
    raw_first = tl.load(source, mask=present, other=0.0)
    raw_second = tl.load(source + D // 2, mask=present, other=0.0)
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * D + half)[None, :]
    sin = tl.load(cos_sin_ptr + position * D + D // 2 + half)[None, :]

    first, second = raw_first.to(tl.float32), raw_second.to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scale = tl.rsqrt(squares / D + eps)[:, None]
        is_q = (head < HQ)[:, None]
        q_weight, k_weight = tl.load(q_weight_ptr + half), tl.load(k_weight_ptr + half)
        weight = tl.where(is_q, q_weight[None, :], k_weight[None, :]).to(tl.float32)
        first = (weight * (first * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        q_weight = tl.load(q_weight_ptr + D // 2 + half)
        k_weight = tl.load(k_weight_ptr + D // 2 + half)
        weight = tl.where(is_q, q_weight[None, :], k_weight[None, :]).to(tl.float32)
        second = (weight * (second * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin

    q_at = q_out_ptr + token * (HQ * D) + head[:, None] * D + half[None, :]
    q_mask = (head < HQ)[:, None]
    tl.store(q_at, rotated_first.to(dtype), mask=q_mask)
    tl.store(q_at + D // 2, rotated_second.to(dtype), mask=q_mask)

    if KEEP_KEYS:
        key_mask = ((head >= HQ) & (head < HQ + HKV))[:, None]
        tl.store(source, rotated_first.to(dtype), mask=key_mask)
        tl.store(source + D // 2, rotated_second.to(dtype), mask=key_mask)

    stored = k_cache_ptr.dtype.element_ty
    k_at = slot * (HKV * D) + (head[:, None] - HQ) * D + half[None, :]
    stored_end = tl.where(slot >= 0, HQ + 2 * HKV, 0)  # a padding token stores no head
    k_mask = ((head >= HQ) & (head < tl.minimum(HQ + HKV, stored_end)))[:, None]
    tl.store(k_cache_ptr + k_at, rotated_first.to(stored), mask=k_mask)
    tl.store(k_cache_ptr + k_at + D // 2, rotated_second.to(stored), mask=k_mask)
    v_at = k_at - HKV * D
    v_mask = ((head >= HQ + HKV) & (head < stored_end))[:, None]
    tl.store(v_cache_ptr + v_at, raw_first.to(stored), mask=v_mask)
    tl.store(v_cache_ptr + v_at + D // 2, raw_second.to(stored), mask=v_mask)


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    first_token: int = 0,
    keep_keys: bool = False,
) -> torch.Tensor:
    """first_token: those before it are left alone, and their q is undefined; keep_keys: also leave
    the rotated keys in their places of qkv."""
    tokens = qkv.shape[0] - first_token
    q = torch.empty(
        (qkv.shape[0], shape.num_heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device
    )
    heads = shape.num_heads + 2 * shape.num_kv_heads
    # Few tokens: spread a token over many programs; many tokens: wide programs, fewer of them.
    tile = 1 if tokens <= 8 else 4 if tokens <= 64 else 16
    has_norm = q_norm is not None and k_norm is not None
    _rope_store_kernel[(tokens, triton.cdiv(heads, tile))](
        qkv, q, k_cache, v_cache, q_norm, k_norm, cos_sin, positions, slot_mapping,
        first_token, eps,
        HQ=shape.num_heads, HKV=shape.num_kv_heads, D=shape.head_dim, HEADS=tile,
        HAS_NORM=has_norm, KEEP_KEYS=keep_keys,
        num_warps=max(1, min(4, tile * shape.head_dim // 256)),
    )  # fmt: skip
    return q
