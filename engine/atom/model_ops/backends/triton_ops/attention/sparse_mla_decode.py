# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""MLA of every token to its own cache slots, as selected by an indexer.

A program takes a token, a tile of its query heads and one split of its slots. Tokens share nothing,
so decodes and prompts are treated alike. Slots come in any order, padded with -1: a captured step
knows only their maximum, and its cost depends on its contexts. Splits and their combination are
those of mla_decode.py; a token without slots yields zeros.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.mla_decode import mla_config
from atom.model_ops.backends.triton_ops.attention.mla_tiles import (
    load_part,
    mla_launch,
    tile_in_registers,
)
from atom.model_ops.backends.triton_ops.attention.paged_tiles import softmax_step
from atom.model_ops.backends.triton_ops.attention.split_kv import (
    SplitParts,
    choose_splits,
    combine_splits,
    split_length,
)
from atom.model_ops.backends.triton_ops.launch import compute_units, head_lanes, next_power_of_2
from atom.model_ops.values import LatentCache, LatentShape


@triton.jit(do_not_specialize=["q_rope_stride", "least", "splits"])
def _sparse_mla_kernel(
    absorbed_ptr, q_rope_ptr, cache_ptr, key_cache_ptr, entry_scale_ptr, selected_ptr, out_ptr,
    partial_ptr, lse_ptr,
    q_rope_stride, least, splits, scale,
    HQ: tl.constexpr, HEAD: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    HEADS: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, BLOCK_N: tl.constexpr, IS_SPLIT:
    tl.constexpr,
):  # fmt: skip
    """absorbed_ptr, q_rope_ptr: as in mla_decode.py; selected_ptr [T, TOP_K] int64;
    SLOTS: lanes of TOP_K."""
    RANK_LANES: tl.constexpr = head_lanes(RANK)
    ROPE_LANES: tl.constexpr = head_lanes(ROPE)
    tile, token, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    start, end, length = 0, TOP_K, TOP_K
    if IS_SPLIT:
        length = split_length(TOP_K, least, splits, BLOCK_N)
        start = split * length
        end = tl.minimum(start + length, TOP_K)
        if (start >= TOP_K) & (split > 0):
            return
    head = tile * HEADS + tl.arange(0, HEADS)
    real = head < HQ
    query_head = token * HQ + head
    absorbed = load_part(absorbed_ptr + query_head * RANK, real, RANK, RANK_LANES)
    q_rope = load_part(q_rope_ptr + token * q_rope_stride + head * HEAD, real, ROPE, ROPE_LANES)
    running_max = tl.full([HEADS], float("-inf"), tl.float32)
    running_sum = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, RANK_LANES], tl.float32)
    selected_ptr += token * TOP_K
    index = tl.arange(0, SLOTS)
    # The number of this split's slots: the loop ends at the first -1.
    own = tl.load(selected_ptr + index, mask=(index >= start) & (index < end), other=-1)
    end = start + tl.sum((own >= 0).to(tl.int32), axis=0)
    # A tile's slots are loaded with the one before, as blocks are in paged_tiles.py.
    place = tl.arange(0, BLOCK_N)
    # A gather by slot: neighbours in the tile lie anywhere, so an entry is read as one run of RANK
    # + ROPE.
    slots_ptr = selected_ptr + place
    slot = tl.load(slots_ptr + start, mask=start + place < end, other=-1)
    for first in range(start, end, BLOCK_N):
        chosen = slot >= 0
        latent_scale = 1.0
        if entry_scale_ptr is None:
            entry = cache_ptr + slot * (RANK + ROPE)
            key_at = entry + RANK
        else:
            entry = cache_ptr + slot * RANK
            key_at = key_cache_ptr + slot * ROPE
            latent_scale = tl.load(entry_scale_ptr + slot, mask=chosen, other=0.0)
        latent = load_part(entry, chosen, RANK, RANK_LANES).to(absorbed.dtype)
        key = load_part(key_at, chosen, ROPE, ROPE_LANES).to(absorbed.dtype)
        following = first + BLOCK_N
        slot = tl.load(slots_ptr + following, mask=following + place < end, other=-1)
        scores = tl.dot(absorbed, tl.trans(latent), input_precision="ieee")
        if entry_scale_ptr is not None:
            scores = scores * tl.expand_dims(latent_scale, 0)
        scores = tl.dot(q_rope, tl.trans(key), scores, input_precision="ieee")
        scores = tl.where(chosen[None, :], scores, float("-inf"))
        running_max, running_sum, acc = softmax_step(
            scores, latent, latent_scale, scale, running_max, running_sum, acc, True,
            entry_scale_ptr is not None,
        )  # fmt: skip
    total = tl.where(running_sum > 0, running_sum, 1.0)
    result = acc / total[:, None]
    lane = tl.arange(0, RANK_LANES)
    stored = real[:, None] & (lane < RANK)[None, :]
    if length >= TOP_K:
        out_at = out_ptr + query_head[:, None] * RANK + lane[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=stored)
    else:
        at = query_head * splits + split
        tl.store(partial_ptr + at[:, None] * RANK + lane[None, :], result, mask=stored)
        # Finite, so that splits without slots have no weight and do not make others NaN.
        lse = tl.maximum(running_max, -1e30) + tl.log2(total)
        tl.store(lse_ptr + at, lse, mask=real)


def sparse_mla_decode(
    queries: tuple[torch.Tensor, torch.Tensor],
    shape: LatentShape,
    cache: LatentCache,
    selected: torch.Tensor,
) -> torch.Tensor:
    """Attend with queries, absorbed [T, Hq, rank] and q_rope [T, Hq, rope] of tokens with slots
    selected [T, top_k] → weighted latents [T, Hq, rank]."""
    (absorbed, q_rope), (tokens, top_k) = queries, selected.shape
    device, heads = absorbed.device, shape.num_heads
    launch = mla_launch(shape, absorbed.dtype)
    config = mla_config(launch, device)
    tile = tile_in_registers(config.block_n, config.num_warps, more=True)
    splits = choose_splits(
        tokens, launch.head_tiles, top_k, compute_units(device), config, even=True
    )
    out = torch.empty_like(absorbed)
    partial = lse = out
    is_split = splits.count > 1
    if is_split:
        size = tokens * heads * splits.count
        partial = torch.empty((size, shape.kv_rank), dtype=torch.float32, device=device)
        lse = torch.empty((size,), dtype=torch.float32, device=device)
    _sparse_mla_kernel[(launch.head_tiles, tokens, splits.count)](
        absorbed, q_rope, cache.entries, cache.keys, cache.scale, selected, out, partial, lse,
        q_rope.stride(0), splits.least, splits.count, shape.scale * math.log2(math.e),
        HQ=heads, HEAD=shape.head_dim, RANK=shape.kv_rank, ROPE=shape.rope_dim,
        HEADS=launch.heads,
        TOP_K=top_k, SLOTS=next_power_of_2(top_k), BLOCK_N=tile.block_n, IS_SPLIT=is_split,
        num_warps=tile.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if is_split:
        parts = SplitParts(partial, lse, tile.block_n)
        contexts = torch.full((tokens,), top_k, dtype=torch.int32, device=device)
        combine_splits(parts, contexts, out, splits)
    return out
