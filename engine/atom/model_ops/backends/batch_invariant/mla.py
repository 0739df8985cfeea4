# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""MLA over the paged cache of latents, absorbed for decodes and prompts alike: see attention.py for
tiles by position and splits. Queries and results are mapped by products of one order."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.batch_invariant.attention import (
    Parts,
    empty_parts,
    fold,
    fold_parts,
    position_tile,
    shared_programs,
    softmax_result,
    split_tokens,
)
from atom.model_ops.backends.batch_invariant.linear import multiply
from atom.model_ops.backends.triton_ops.attention.mla import up_by_head
from atom.model_ops.backends.triton_ops.attention.mla_prefill import LatentStep
from atom.model_ops.backends.triton_ops.attention.mla_tiles import attend_entries, load_part
from atom.model_ops.backends.triton_ops.attention.paged_tiles import begin_softmax
from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight
from atom.utils.forward_context import AttentionMetaData

# Heads times queries of a tile, cached entries of one, and warps.
_BLOCK_M, _BLOCK_N, _WARPS = 32, 32, 8
_LEAST_HEADS = 16


@triton.jit
def _split(
    absorbed, q_rope, entries, table_ptr, position, tile_position, split, length, end, scale,
    RANK: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The softmax and values of one split of what a tile's queries see."""
    cache_ptr, key_cache_ptr, entry_scale_ptr = entries
    ROWS: tl.constexpr = absorbed.shape[0]
    LANES: tl.constexpr = absorbed.shape[1]
    highest, total, acc = begin_softmax(ROWS, LANES)
    first, last = split * length, tl.minimum((split + 1) * length, end)
    unmasked = tl.maximum(tl.minimum(tile_position // BLOCK_N * BLOCK_N, last), first)
    highest, total, acc = attend_entries(
        absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, position, first,
        unmasked, scale, highest, total, acc, RANK, ROPE, BLOCK_SIZE, BLOCK_N, False,
    )  # fmt: skip
    return attend_entries(
        absorbed, q_rope, cache_ptr, key_cache_ptr, entry_scale_ptr, table_ptr, position, unmasked,
        last, scale, highest, total, acc, RANK, ROPE, BLOCK_SIZE, BLOCK_N, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "q_rope_stride", "first_row", "rows", "most"])
def _mla_kernel(
    absorbed_ptr, q_rope_ptr, entries, tables_ptr, contexts_ptr, starts_ptr, out_ptr,
    left_parts, table_stride, q_rope_stride, first_row, rows, most, scale,
    HQ: tl.constexpr, HEAD: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    ALONE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """See _attention_kernel; partial [rows, Hq, most, RANK]."""
    partial_ptr, lse_ptr = left_parts
    LANES: tl.constexpr = head_lanes(RANK)
    row, first_query, tile_position, has_any = position_tile(
        starts_ptr, contexts_ptr, tl.program_id(0), first_row, rows, TOKENS, ALONE
    )
    if not has_any:
        return
    context = tl.load(contexts_ptr + row)
    queries = tl.load(starts_ptr + row + 1) - first_query
    # One entry serves all heads, so a tile has several heads of each query, and products of 16 rows
    # at least; a query's lanes follow from its position, as in _attention_kernel.
    lane = tl.arange(0, TOKENS * HEADS)
    position = tile_position + lane // HEADS
    head = tl.program_id(1) * HEADS + lane % HEADS
    query = position - tl.maximum(context - queries, 0)
    real = (query >= 0) & (query < queries) & (head < HQ)
    token = (first_query + query).to(tl.int64)
    # The query's rotated part stays a view of the whole query: its heads are HEAD elements apart.
    absorbed = load_part(absorbed_ptr + (token * HQ + head) * RANK, real, RANK, LANES)
    q_rope = load_part(
        q_rope_ptr + token * q_rope_stride + head * HEAD, real, ROPE, head_lanes(ROPE)
    )
    end = tl.minimum(tile_position + TOKENS, context)
    length = split_tokens(tile_position)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    element = tl.arange(0, LANES)
    stored = real[:, None] & (element < RANK)[None, :]
    highest, total, acc = begin_softmax(TOKENS * HEADS, LANES)
    # Folded in order by one program, or left for a kernel that folds them in that order.
    for split in range(tl.program_id(2), tl.cdiv(end, length), SHARED):
        own_highest, own_total, own_acc = _split(
            absorbed, q_rope, entries, table_ptr, position, tile_position, split, length, end,
            scale, RANK, ROPE, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        if SHARED == 1:
            highest, total, acc = fold(highest, total, acc, own_highest, own_total, own_acc)
        else:
            own = ((row - first_row).to(tl.int64) * HQ + head) * most + split
            tl.store(partial_ptr + own[:, None] * RANK + element[None, :], own_acc, mask=stored)
            tl.store(lse_ptr + own * 2, own_highest, mask=real)
            tl.store(lse_ptr + own * 2 + 1, own_total, mask=real)
    if SHARED == 1:
        result = softmax_result(highest, total, acc, 0.0, False).to(out_ptr.dtype.element_ty)
        at = out_ptr + ((token * HQ + head) * RANK)[:, None] + element[None, :]
        tl.store(at, result, mask=stored)


def mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    q, decodes, rows = tokens.q, step.num_decodes, step.context_lens.shape[0]
    keys, values = up_by_head(up, shape)
    still, q_rope = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    absorbed = _by_head(still, keys.transpose(1, 2))
    found = torch.zeros_like(absorbed) if step.has_padding else torch.empty_like(absorbed)
    queries, layer = (absorbed, q_rope), LatentStep(shape, cache, step)
    heads = _heads_of_tile(shape)
    count = _BLOCK_M // heads
    head_tiles = triton.cdiv(shape.num_heads, heads)
    if decodes:
        shared = shared_programs(decodes * head_tiles, q.device)
        parts = empty_parts(step, shape.num_heads, shape.kv_rank) if shared > 1 else (None, None)
        _launch((decodes, head_tiles, shared), queries, layer, found, parts)
        if shared > 1:
            fold_parts(parts, step, found, count)
    if decodes < rows:
        tiles = (q.shape[0] - decodes) // count + 2 * (rows - decodes)
        _launch((tiles, head_tiles, 1), queries, layer, found, None)
    return _by_head(found, values).flatten(1)


def _heads_of_tile(shape: LatentShape) -> int:
    return max(_LEAST_HEADS, min(_BLOCK_M, next_power_of_2(shape.num_heads)))


def _by_head(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Map x [T, Hq, in] by each head's matrix of matrices [Hq, out, in] → [T, Hq, out]."""
    heads, outputs, _ = matrices.shape
    out = torch.empty((x.shape[0], heads, outputs), dtype=x.dtype, device=x.device)
    multiply(x.transpose(0, 1), matrices, out.transpose(0, 1)[None], None)
    return out


def _launch(
    grid: tuple[int, int, int],
    queries: tuple[torch.Tensor, torch.Tensor],
    layer: LatentStep,
    out: torch.Tensor,
    parts: Parts | None,
) -> None:
    """Launch the kernel for decodes or the other rows. grid: tiles, tiles of heads, programs that
    share a row's splits. parts: of decodes, whose programs may leave splits; None for the others.
    """
    (absorbed, q_rope), shape, cache, step = queries, layer.shape, layer.cache, layer.step
    rows, decodes = step.context_lens.shape[0], step.num_decodes
    first, end = (0, decodes) if parts is not None else (decodes, rows)
    left = parts or (None, None)
    heads = _heads_of_tile(shape)
    _mla_kernel[grid](
        absorbed, q_rope, (cache.entries, cache.keys, cache.scale), step.block_tables,
        step.context_lens, step.query_starts, out, left, step.block_tables.stride(0),
        q_rope.stride(0), first, end - first, 0 if left[0] is None else left[0].shape[2],
        shape.scale * math.log2(math.e),
        HQ=shape.num_heads, HEAD=shape.head_dim, RANK=shape.kv_rank, ROPE=shape.rope_dim,
        HEADS=heads, TOKENS=_BLOCK_M // heads, BLOCK_SIZE=cache.block_size, BLOCK_N=_BLOCK_N,
        ALONE=parts is not None, SHARED=grid[2], num_warps=_WARPS, num_stages=2,
    )  # fmt: skip
