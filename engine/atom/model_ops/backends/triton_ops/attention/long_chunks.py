# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A long chunk after a history by the library: piece by piece, merged by log-sum-exps.

The library supports neither a paged cache nor a causal mask that begins in the middle. So the keys
and values of a piece of the context are gathered into a scratch buffer, each tile of queries that
sees them attends to them alone, and its result is merged into the tile's: two softmaxes over
disjoint keys equal one over both, weighted by their sums (FlashAttention-2, Dao 2023, section 3.1).
`atom.utils.long_chunks` chooses the tiles and pieces. The scratch holds one piece at a time; sums
are kept in float32, results in their own dtype, rounded once for each piece.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import LayerStep
from atom.model_ops.backends.triton_ops.attention.prefill import RowSpan, prefill_attention
from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.backends.triton_ops.nvidia.cudnn_attention import piece_attention
from atom.utils.forward_context import LongChunk
from atom.utils.long_chunks import Piece, pieces_of

_GATHERED_ELEMENTS = 4096  # of keys that a program copies, and as many of values
_MERGED_TOKENS = 32


@triton.jit(do_not_specialize=["table_stride", "row", "first", "tokens"])
def _gather_kernel(
    k_cache_ptr, v_cache_ptr, tables_ptr, keys_ptr, values_ptr,
    table_stride, row, first, tokens,
    WIDTH: tl.constexpr, LANES: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Tokens [first, first + tokens) of a row's context → keys, values [tokens, WIDTH]."""
    # Whole tokens of all KV heads: a block's rows are one run in memory.
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = token < tokens
    real = inside[:, None] & (lane < WIDTH)[None, :]
    at = first + token
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    block = tl.load(table_ptr + at // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    # Each part by itself: see `cache_offsets`.
    source = block * (BLOCK_SIZE * WIDTH) + at % BLOCK_SIZE * WIDTH
    source = source[:, None] + lane[None, :]
    target = token.to(tl.int64)[:, None] * WIDTH + lane[None, :]
    tl.store(keys_ptr + target, tl.load(k_cache_ptr + source, mask=real), mask=real)
    tl.store(values_ptr + target, tl.load(v_cache_ptr + source, mask=real), mask=real)


@triton.jit(do_not_specialize=["tokens", "lse_stride"])
def _merge_kernel(
    out_ptr, lse_ptr, part_ptr, part_lse_ptr, tokens, lse_stride,
    HQ: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Merge a part's result [tokens, HQ, D] and log-sum-exps [HQ, tokens] into the existing ones,
    whose log-sum-exps are lse_stride apart; a log-sum-exp of -inf means that there is no result
    yet."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    lane = tl.arange(0, LANES)
    inside = token < tokens
    lse_at = lse_ptr + head * lse_stride + token
    # Natural logarithms: the library's, not our base 2.
    had = tl.load(lse_at, mask=inside, other=float("-inf"))
    new = tl.load(part_lse_ptr + head * tokens + token, mask=inside, other=0.0)
    highest = tl.maximum(had, new)
    kept, added = tl.exp(had - highest), tl.exp(new - highest)
    total = kept + added
    at = (token.to(tl.int64) * (HQ * D) + head * D)[:, None] + lane[None, :]
    real = inside[:, None] & (lane < D)[None, :]
    # Results that do not exist yet are not read: memory of `out` may hold NaN.
    before = tl.load(out_ptr + at, mask=real & (kept > 0)[:, None], other=0.0).to(tl.float32)
    part = tl.load(part_ptr + at, mask=real, other=0.0).to(tl.float32)
    merged = before * (kept / total)[:, None] + part * (added / total)[:, None]
    tl.store(out_ptr + at, merged.to(out_ptr.dtype.element_ty), mask=real)
    tl.store(lse_at, highest + tl.log(total), mask=inside)


def is_for_library(q: torch.Tensor, layer: LayerStep, chunk: LongChunk) -> bool:
    """Return whether the library may attend to the chunk: the layer sees all its tokens and no
    later ones, the library supports its scores, and the cache has the activations' dtype."""
    shape = layer.shape
    if not shape.has_plain_scores or layer.cache.k.dtype != q.dtype:
        return False
    if shape.last_seen(layer.step) is not None:
        return False  # the library's mask is causal
    context = sum(chunk.history) + sum(chunk.tiles)
    return shape.mask.seen(context) == context and piece_attention(q, shape) is not None


def chunk_attention(q: torch.Tensor, layer: LayerStep, chunk: LongChunk, out: torch.Tensor) -> None:
    """Attend with a chunk that `is_for_library`, except its head. q, out [T, Hq, D] are of the
    whole step. The cache holds the chunk's keys and values."""
    _attend_tiles(q, layer, chunk, out)
    done = chunk.head + sum(chunk.tiles)
    if done < chunk.length:
        rest = RowSpan(chunk.row, 1, chunk.length - done, skipped=done)
        prefill_attention(q, layer, rest, out)


def _attend_tiles(q: torch.Tensor, layer: LayerStep, chunk: LongChunk, out: torch.Tensor) -> None:
    shape = layer.shape
    attend = piece_attention(q, shape)
    assert attend is not None, "is_for_library has asked"
    longest = max(*chunk.history, *chunk.tiles)
    size = (2, longest, shape.num_kv_heads, shape.head_dim)
    scratch = torch.empty(size, dtype=q.dtype, device=q.device)
    lse = torch.full(
        (shape.num_heads, sum(chunk.tiles)), -torch.inf, dtype=torch.float32, device=q.device
    )
    for piece in pieces_of(chunk):
        keys, values = _gathered(layer, chunk.row, piece, scratch)
        for tile in piece.tiles:
            first = chunk.first_token + tile.first
            tokens = slice(first, first + tile.length)
            part, part_lse = attend(q[tokens], keys, values, tile.is_causal, shape.scale)
            sums = lse[:, tile.first - chunk.head :]
            _merge(out[tokens], sums, part, part_lse)


def _gathered(
    layer: LayerStep, row: int, piece: Piece, scratch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the piece's keys and values, [length, Hkv, D] each, in the scratch."""
    cache, tables = layer.cache, layer.step.block_tables
    keys, values = scratch[0, : piece.length], scratch[1, : piece.length]
    width = layer.shape.num_kv_heads * layer.shape.head_dim
    lanes = min(next_power_of_2(width), _GATHERED_ELEMENTS)
    tokens = _GATHERED_ELEMENTS // lanes
    _gather_kernel[(triton.cdiv(piece.length, tokens), triton.cdiv(width, lanes))](
        cache.k, cache.v, tables, keys, values, tables.stride(0), row, piece.first, piece.length,
        WIDTH=width, LANES=lanes, BLOCK_SIZE=cache.block_size, TOKENS=tokens,
        num_warps=warps_for(_GATHERED_ELEMENTS),
    )  # fmt: skip
    return keys, values


def _merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> None:
    """Merge part [Q, Hq, D] and part_lse [Hq, Q] into out and the leading columns of lse."""
    tokens, heads, head_dim = part.shape
    lanes = next_power_of_2(head_dim)
    _merge_kernel[(triton.cdiv(tokens, _MERGED_TOKENS), heads)](
        out, lse, part, part_lse, tokens, lse.stride(0),
        HQ=heads, D=head_dim, LANES=lanes, TOKENS=_MERGED_TOKENS,
        num_warps=warps_for(_MERGED_TOKENS * lanes, elements_per_warp=1024),
    )  # fmt: skip
