# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal MLA of ragged rows of queries over the paged cache, their own included.

Queries come absorbed into the latent. A program takes a few neighbouring queries of one row with a
tile of their heads, so that a tile of entries serves all of them; tiles wholly before the first
query need no mask. How programs find their rows is as in prefill.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.mla_tiles import (
    attend_entries,
    load_part,
    mla_launch,
    tile_in_registers,
)
from atom.model_ops.backends.triton_ops.attention.prefill import RowSpan, find_row
from atom.model_ops.backends.triton_ops.launch import head_lanes
from atom.model_ops.values import LatentCache, LatentShape
from atom.utils.forward_context import AttentionMetaData


@triton.jit(do_not_specialize=["table_stride", "q_rope_stride", "first_row", "rows", "skipped"])
def _mla_prefill_kernel(
    absorbed_ptr, q_rope_ptr, cache_ptr, key_cache_ptr, entry_scale_ptr, tables_ptr, contexts_ptr,
    starts_ptr, out_ptr,
    table_stride, q_rope_stride, first_row, rows, skipped, scale,
    HQ: tl.constexpr, HEAD: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """skipped: leading queries of the only row that others compute."""
    RANK_LANES: tl.constexpr = head_lanes(RANK)
    ROPE_LANES: tl.constexpr = head_lanes(ROPE)
    tile, head_tile = tl.program_id(0), tl.program_id(1)
    index = find_row(starts_ptr, tile, first_row, rows, TOKENS)
    row = first_row + index
    start = tl.load(starts_ptr + row) + skipped
    base = tl.load(starts_ptr + first_row) + skipped
    queries = tl.load(starts_ptr + row + 1) - start
    tile = tile - ((start - base) // TOKENS + index)
    tiles = tl.cdiv(queries, TOKENS)
    if tile >= tiles:
        return
    # Longest first, as in prefill.py.
    tile = tiles - 1 - tile
    context = tl.load(contexts_ptr + row)

    # Heads of a token side by side: all of them see the same entries, so the tile is as tall as
    # registers allow.
    lane = tl.arange(0, TOKENS * HEADS)
    query = tile * TOKENS + lane // HEADS
    head = head_tile * HEADS + lane % HEADS
    real = (query < queries) & (head < HQ)
    token = (start + query).to(tl.int64)
    absorbed = load_part(absorbed_ptr + (token * HQ + head) * RANK, real, RANK, RANK_LANES)
    q_rope = load_part(q_rope_ptr + token * q_rope_stride + head * HEAD, real, ROPE, ROPE_LANES)
    position = context - queries + query
    first_position = context - queries + tile * TOKENS
    end = tl.minimum(first_position + TOKENS, context)
    # Entries wholly before the first query: no mask.
    unmasked_end = (first_position + 1) // BLOCK_N * BLOCK_N
    running_max = tl.full([TOKENS * HEADS], float("-inf"), tl.float32)
    running_sum = tl.zeros([TOKENS * HEADS], tl.float32)
    acc = tl.zeros([TOKENS * HEADS, RANK_LANES], tl.float32)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max, running_sum, acc = attend_entries(
        absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, position, 0,
        unmasked_end, scale, running_max, running_sum, acc,
        RANK, ROPE, BLOCK_SIZE, BLOCK_N, False,
    )  # fmt: skip
    running_max, running_sum, acc = attend_entries(
        absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, position,
        unmasked_end, end, scale, running_max, running_sum, acc,
        RANK, ROPE, BLOCK_SIZE, BLOCK_N, True,
    )  # fmt: skip
    result = (acc / running_sum[:, None]).to(out_ptr.dtype.element_ty)
    element = tl.arange(0, RANK_LANES)
    at = out_ptr + ((token * HQ + head) * RANK)[:, None] + element[None, :]
    tl.store(at, result, mask=real[:, None] & (element < RANK)[None, :])


@dataclass(frozen=True, slots=True)
class LatentStep:
    """A layer's latent attention in one step: its shape, its cache, and the rows."""

    shape: LatentShape
    cache: LatentCache
    step: AttentionMetaData


def mla_prefill(
    queries: tuple[torch.Tensor, torch.Tensor],
    layer: LatentStep,
    span: RowSpan,
    out: torch.Tensor,
) -> None:
    """Attend with the rows of `span`. queries: absorbed [T, Hq, rank] and q_rope [T, Hq, rope] of
    the whole step; out [T, Hq, rank]: weighted latents."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    (absorbed, q_rope), tables = queries, step.block_tables
    launch = mla_launch(shape, absorbed.dtype)
    tokens_of_tile = launch.queries // launch.heads
    tiles = span.tokens // tokens_of_tile + span.rows
    tile = tile_in_registers(launch.block_n, 8, more=cache.scale is not None)
    _mla_prefill_kernel[(tiles, launch.head_tiles)](
        absorbed, q_rope, cache.entries, cache.keys, cache.scale, tables, step.context_lens,
        step.query_starts, out,
        tables.stride(0), q_rope.stride(0), span.first_row, span.rows, span.skipped,
        shape.scale * math.log2(math.e),
        HQ=shape.num_heads, HEAD=shape.head_dim, RANK=shape.kv_rank, ROPE=shape.rope_dim,
        HEADS=launch.heads,
        TOKENS=tokens_of_tile, BLOCK_SIZE=cache.block_size, BLOCK_N=tile.block_n,
        num_warps=tile.num_warps, num_stages=2,
    )  # fmt: skip
