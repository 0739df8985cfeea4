# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rotation of an indexer's queries and keys, and the store of keys into its paged cache.

One program of a token takes its key, the others a few heads' queries; queries are rotated in place.
The first ROPE elements turn, by halves. A token whose slot is negative is a graph's padding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.mla_store import rotated, store_halves
from atom.model_ops.backends.triton_ops.attention.paged_tiles import head_scale, quantise_head
from atom.model_ops.backends.triton_ops.launch import fp8_limit, next_power_of_2
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.values import Rotary

_HEADS = 16  # of a program, at most


@triton.jit(do_not_specialize=["q_stride", "key_stride"])
def _index_store_kernel(
    q_ptr, key_ptr, cache_ptr, key_scale_ptr, cos_sin_ptr, positions_ptr, slots_ptr,
    q_stride, key_stride,
    HQ: tl.constexpr, DIM: tl.constexpr, ROPE: tl.constexpr, HALF: tl.constexpr,
    STILL: tl.constexpr, HEADS: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """HALF, STILL: lanes of half the part that turns, and of the other part; HEADS: of q that a
    program rotates; LIMIT: of a cache in fp8."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions_ptr + token).to(tl.int64)
    # Pairs half a rotated part apart, as in mla_store.py.
    half = tl.arange(0, HALF)
    within = half < ROPE // 2
    cos = tl.load(cos_sin_ptr + position * ROPE + half, mask=within, other=0.0)
    sin = tl.load(cos_sin_ptr + position * ROPE + ROPE // 2 + half, mask=within, other=0.0)
    # Queries turn in place; only keys are cached.
    if part > 0:
        head = (part - 1) * HEADS + tl.arange(0, HEADS)[:, None]
        at = q_ptr + token * q_stride + head * DIM + half[None, :]
        present = within[None, :] & (head < HQ)
        first, second = rotated(at, cos[None, :], sin[None, :], present, ROPE)
        store_halves(at, first, second, present, ROPE)
        return
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        key = key_ptr + token * key_stride
        first, second = rotated(key + half, cos, sin, within, ROPE)
        cached = cache_ptr + slot * DIM
        lane = tl.arange(0, STILL)
        behind = lane < DIM - ROPE
        # The part that does not turn follows the rotated one.
        still = tl.load(key + ROPE + lane, mask=behind, other=0.0)
        stored = cache_ptr.dtype.element_ty
        if key_scale_ptr is not None:
            first, second = first.to(tl.float32), second.to(tl.float32)
            still = still.to(tl.float32)
            turned = tl.where(within, tl.maximum(tl.abs(first), tl.abs(second)), 0.0)
            # One scale over both parts: a score is one dot of the whole key.
            largest = tl.maximum(tl.max(turned, axis=0), tl.max(tl.abs(still), axis=0))
            scale = head_scale(largest, LIMIT)
            first = quantise_head(first, scale, LIMIT, stored)
            second = quantise_head(second, scale, LIMIT, stored)
            still = quantise_head(still, scale, LIMIT, stored)
            tl.store(key_scale_ptr + slot, scale)
        store_halves(cached + half, first, second, within, ROPE)
        tl.store(cached + ROPE + lane, still.to(stored), mask=behind)


def store_index(
    tokens: IndexTokens,
    shape: IndexShape,
    rotary: Rotary,
    cache: IndexCache,
    slot_mapping: torch.Tensor,
) -> None:
    """Rotate queries in place, and write rotated keys to their slots."""
    q, keys = tokens.q, tokens.keys
    heads = min(_HEADS, next_power_of_2(shape.num_heads))
    _index_store_kernel[(q.shape[0], 1 + triton.cdiv(shape.num_heads, heads))](
        q, keys, cache.keys, cache.scale, rotary.cos_sin, rotary.positions, slot_mapping,
        q.stride(0), keys.stride(0),
        HQ=shape.num_heads, DIM=shape.dim, ROPE=shape.rope_dim,
        HALF=next_power_of_2(shape.rope_dim // 2),
        STILL=next_power_of_2(max(1, shape.dim - shape.rope_dim)), HEADS=heads,
        LIMIT=fp8_limit(cache), num_warps=1,
    )  # fmt: skip
