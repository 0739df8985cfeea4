# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What decode and prefill of MLA share: tiles of cached entries, and their launches.

An entry is a latent of RANK elements and a rotated key of ROPE; each part has as many lanes as the
next power of two. The latent is key and value at once, so a tile of them is loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import load_blocks, softmax_step
from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.values import LatentShape

# Queries of a tile (heads, or heads of a few tokens): the tensor core's smallest number, and as
# many as registers can sum up and 64 KiB of shared memory hold, which is all that a gfx942 has.
_LEAST_QUERIES, _MOST_QUERIES, _QUERY_BYTES = 16, 64, 64 * 1024
_TILE_BYTES = 36 * 1024  # of cached entries


@triton.jit
def load_part(at, inside, SIZE: tl.constexpr, LANES: tl.constexpr):
    """SIZE elements at each of `at` [N], in LANES lanes; zeros where not `inside`."""
    lane = tl.arange(0, LANES)
    # Latents of 512 need no mask of lanes; others are padded.
    mask = inside[:, None]
    if SIZE != LANES:
        mask = mask & (lane < SIZE)[None, :]
    return tl.load(at[:, None] + lane[None, :], mask=mask, other=0.0)


@triton.jit
def attend_entries(
    absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, position, first, end,
    scale,
    running_max, running_sum, acc,
    RANK: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL:
    tl.constexpr,
):  # fmt: skip
    """Fold the cached entries [first, end) into the softmax of M queries: absorbed [M, RANK_LANES],
    q_rope [M, ROPE_LANES]. CAUSAL: of query m those up to position[m] alone; key_cache_ptr,
    entry_scale_ptr: of a cache in fp8."""
    RANK_LANES: tl.constexpr = absorbed.shape[1]
    ROPE_LANES: tl.constexpr = q_rope.shape[1]
    block = load_blocks(table_ptr, first, 0, end, BLOCK_SIZE, BLOCK_N, False)
    for start in range(first, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < end
        # Each part by itself: of their sum Triton 3.6 expects more alignment than it has.
        latent_scale = 1.0
        if entry_scale_ptr is None:
            block_at = block.to(tl.int64) * (BLOCK_SIZE * (RANK + ROPE))
            entry = cache_ptr + block_at + token % BLOCK_SIZE * (RANK + ROPE)
            latent = load_part(entry, inside, RANK, RANK_LANES).to(absorbed.dtype)
            key = load_part(entry + RANK, inside, ROPE, ROPE_LANES).to(absorbed.dtype)
        else:
            block_at = block.to(tl.int64) * BLOCK_SIZE
            offset = token % BLOCK_SIZE
            entry = cache_ptr + block_at * RANK + offset * RANK
            latent = load_part(entry, inside, RANK, RANK_LANES).to(absorbed.dtype)
            entry = key_cache_ptr + block_at * ROPE + offset * ROPE
            key = load_part(entry, inside, ROPE, ROPE_LANES).to(absorbed.dtype)
            scale_at = entry_scale_ptr + block_at + offset
            latent_scale = tl.load(scale_at, mask=inside, other=0.0)
        block = load_blocks(table_ptr, start + BLOCK_N, 0, end, BLOCK_SIZE, BLOCK_N, False)
        # Two dots into one sum: the latent's part, then the rotated part, which has no scale in an
        # fp8 cache.
        scores = tl.dot(absorbed, tl.trans(latent), input_precision="ieee")
        if entry_scale_ptr is not None:
            # Between the dots: the rotated key is kept in the model's dtype and has no scale.
            scores = scores * tl.expand_dims(latent_scale, 0)
        scores = tl.dot(q_rope, tl.trans(key), scores, input_precision="ieee")
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (token[None, :] <= position[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        # The latent is the value as well: it stays in shared memory, and V is never read.
        running_max, running_sum, acc = softmax_step(
            scores, latent, latent_scale, scale, running_max, running_sum, acc, False,
            entry_scale_ptr is not None,
        )  # fmt: skip
    return running_max, running_sum, acc


@dataclass(frozen=True, slots=True)
class MlaLaunch:
    """The tiles of a launch: queries, heads among them, the number of tiles of all heads, cached
    entries, and warps."""

    queries: int
    heads: int
    head_tiles: int
    block_n: int
    num_warps: int


def mla_launch(shape: LatentShape, dtype: torch.dtype) -> MlaLaunch:
    rank_lanes, rope_lanes = head_lanes(shape.kv_rank), head_lanes(shape.rope_dim)
    queries = min(_MOST_QUERIES, _QUERY_BYTES // (rank_lanes * dtype.itemsize))
    heads = max(_LEAST_QUERIES, min(queries, next_power_of_2(shape.num_heads)))
    fitting = _TILE_BYTES // ((rank_lanes + rope_lanes) * dtype.itemsize)
    block_n = 1 << max(4, min(6, fitting.bit_length() - 1))
    num_warps = 8 if heads * rank_lanes > 16 * 1024 else 4
    return MlaLaunch(
        queries=queries,
        heads=heads,
        head_tiles=triton.cdiv(shape.num_heads, heads),
        block_n=block_n,
        num_warps=num_warps,
    )


@dataclass(frozen=True, slots=True)
class EntryTile:
    """Entries of a tile, and the warps of a program."""

    block_n: int
    num_warps: int


def tile_in_registers(block_n: int, num_warps: int, *, more: bool) -> EntryTile:
    """Return the requested tile, or one that does not spill on AMD's cards if the kernel needs
    registers for `more` than entries: scales and converted codes, or an address for each."""
    return EntryTile(16, 4) if more and torch.version.hip else EntryTile(block_n, num_warps)
