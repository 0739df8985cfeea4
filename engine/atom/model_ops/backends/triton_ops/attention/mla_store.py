# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Norm of latents, rotation of keys and queries, and the store of entries into the paged cache.

For each token one program takes its entry, the others a few heads' rotated parts; all in place. A
token with a negative slot is a graph's padding: it is not stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import head_scale, quantise_head
from atom.model_ops.backends.triton_ops.launch import fp8_limit, next_power_of_2
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, Rotary

_HEADS = 8  # of a program, at most


@triton.jit
def rotated(at, cos, sin, within, ROPE: tl.constexpr):
    """Both halves of the rotated parts at `at` [.., lanes], in their dtype."""
    dtype = at.dtype.element_ty
    first = tl.load(at, mask=within, other=0.0).to(tl.float32)
    second = tl.load(at + ROPE // 2, mask=within, other=0.0).to(tl.float32)
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit
def store_halves(at, first, second, mask, ROPE: tl.constexpr):
    tl.store(at, first.to(at.dtype.element_ty), mask=mask)
    tl.store(at + ROPE // 2, second.to(at.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["q_stride", "entry_stride"])
def _mla_store_kernel(
    q_ptr, entry_ptr, cache_ptr, key_cache_ptr, entry_scale_ptr, weight_ptr, cos_sin_ptr,
    positions_ptr, slots_ptr, q_stride, entry_stride, eps,
    HQ: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, RANK: tl.constexpr,
    HALF: tl.constexpr, RANK_LANES: tl.constexpr, HEADS: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """HALF: lanes of half a rotated part; HEADS: of q that a program rotates; LIMIT: of a cache in
    fp8, whose rounding the token's entry takes over."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dtype = entry_ptr.dtype.element_ty
    position = tl.load(positions_ptr + token).to(tl.int64)
    half = tl.arange(0, HALF)
    within = half < ROPE // 2
    cos = tl.load(cos_sin_ptr + position * ROPE + half, mask=within, other=0.0)
    sin = tl.load(cos_sin_ptr + position * ROPE + ROPE // 2 + half, mask=within, other=0.0)
    # Queries have separate programs, since a token has one key and many heads.
    if part > 0:
        head = (part - 1) * HEADS + tl.arange(0, HEADS)[:, None]
        at = q_ptr + token * q_stride + head * (NOPE + ROPE) + NOPE + half[None, :]
        present = within[None, :] & (head < HQ)
        first, second = rotated(at, cos[None, :], sin[None, :], present, ROPE)
        store_halves(at, first, second, present, ROPE)
        return
    slot = tl.load(slots_ptr + token).to(tl.int64)
    entry = entry_ptr + token * entry_stride
    lane = tl.arange(0, RANK_LANES)
    inside = lane < RANK
    latent = tl.load(entry + lane, mask=inside, other=0.0).to(tl.float32)
    # Normed before it is cached: the cache holds what attention multiplies.
    latent = latent * tl.rsqrt(tl.sum(latent * latent, axis=0) / RANK + eps)
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    normed = (weight * latent.to(dtype).to(tl.float32)).to(dtype)
    if entry_scale_ptr is not None:
        key = entry + RANK + half
        wide = normed.to(tl.float32)
        scale = head_scale(tl.max(tl.abs(wide), axis=0), LIMIT)
        codes = quantise_head(wide, scale, LIMIT, cache_ptr.dtype.element_ty)
        # The entry itself becomes what the cache holds: a prompt attends to the same numbers
        # whether it looks them up or not.
        tl.store(entry + lane, (codes.to(tl.float32) * scale).to(dtype), mask=inside)
        first, second = rotated(key, cos, sin, within, ROPE)
        kept = key_cache_ptr.dtype.element_ty
        first, second = first.to(kept), second.to(kept)
        store_halves(key, first, second, within, ROPE)
        if slot >= 0:
            tl.store(cache_ptr + slot * RANK + lane, codes, mask=inside)
            tl.store(entry_scale_ptr + slot, scale)
            store_halves(key_cache_ptr + slot * ROPE + half, first, second, within, ROPE)
        return
    tl.store(entry + lane, normed, mask=inside)
    key = entry + RANK + half
    first, second = rotated(key, cos, sin, within, ROPE)
    store_halves(key, first, second, within, ROPE)
    if slot >= 0:
        cached = cache_ptr + slot * (RANK + ROPE)
        tl.store(cached + lane, normed.to(cache_ptr.dtype.element_ty), mask=inside)
        store_halves(cached + RANK + half, first, second, within, ROPE)


def mla_rope_store(
    tokens: LatentTokens,
    shape: LatentShape,
    rotary: Rotary,
    cache: LatentCache,
    slot_mapping: torch.Tensor,
) -> LatentTokens:
    assert rotary.k_norm is not None
    q, entries = tokens.q, tokens.entries
    heads = min(_HEADS, next_power_of_2(shape.num_heads))
    _mla_store_kernel[(q.shape[0], 1 + triton.cdiv(shape.num_heads, heads))](
        q, entries, cache.entries, cache.keys, cache.scale, rotary.k_norm.weight, rotary.cos_sin,
        rotary.positions, slot_mapping, q.stride(0), entries.stride(0), rotary.k_norm.eps,
        HQ=shape.num_heads, NOPE=shape.nope_dim, ROPE=shape.rope_dim, RANK=shape.kv_rank,
        HALF=next_power_of_2(shape.rope_dim // 2), RANK_LANES=next_power_of_2(shape.kv_rank),
        HEADS=heads, LIMIT=fp8_limit(cache), num_warps=1,
    )  # fmt: skip
    return tokens
