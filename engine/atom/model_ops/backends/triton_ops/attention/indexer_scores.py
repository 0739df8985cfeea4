# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Scores of an indexer for every earlier token, over the paged cache of keys.

A program takes a few neighbouring queries of one row and one split of the tokens they reach: a tile
of keys is loaded once and multiplied with the heads of each query. As in decode.py the grid depends
only on sizes that the host knows, and splits are cut on the device; rows that reach no more tokens
than are selected are not scored. Every score is one program's sum in one order, so it does not
depend on the rest of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.mla_tiles import load_part
from atom.model_ops.backends.triton_ops.attention.split_kv import split_length
from atom.model_ops.backends.triton_ops.launch import compute_units, head_lanes
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.utils.forward_context import AttentionMetaData

_BLOCK_N = 64  # keys of a tile
_TOKENS = 8  # queries that share a program, if there are prompts
_LEAST_KEYS = 256  # of a split
_PROGRAMS_PER_UNIT = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens [first, end) of a step whose scores are in memory together; width: scores
    of each; decodes: whether every token of the step is a row."""

    first: int
    end: int
    width: int
    decodes: bool

    @property
    def tokens(self) -> int:
        return self.end - self.first


@triton.jit
def _row_of_tile(starts_ptr, tile, rows, first, end, TOKENS: tl.constexpr):
    """The row of a tile of the piece: row r begins at tile tokens / TOKENS + r, of those tokens of
    the piece that are before it."""
    low, high = 0, rows
    # As prefill.find_row, of a piece of the step.
    while low < high:
        middle = (low + high) // 2
        start = tl.minimum(tl.maximum(tl.load(starts_ptr + middle), first), end)
        if (start - first) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _score_keys(key, key_scale, q, weights):
    """Scores [N] of keys [N, DIM_LANES] by the heads q [H, DIM_LANES] of one query."""
    # relu before the heads' weights, as the lightning indexer is defined.
    products = tl.maximum(tl.dot(key, tl.trans(q), input_precision="ieee"), 0.0)
    score = tl.sum(products * weights[None, :], axis=1) * key_scale
    return tl.where(score == 0.0, 0.0, score)  # both zeros are one


@triton.jit(
    do_not_specialize=[
        "table_stride", "q_stride", "weights_stride", "rows", "first", "end", "width", "least",
        "splits",
    ]
)  # fmt: skip
def _index_scores_kernel(
    q_ptr, head_weights_ptr, keys_ptr, key_scale_ptr, tables_ptr, contexts_ptr,
    starts_ptr, scores_ptr,
    table_stride, q_stride, weights_stride, rows, first, end, width, least, splits, scale,
    HQ: tl.constexpr, DIM: tl.constexpr,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """TOKENS 1: every token is a row."""
    HEADS: tl.constexpr = head_lanes(HQ)
    LANES: tl.constexpr = head_lanes(DIM)
    tile, split = tl.program_id(0), tl.program_id(1)
    # A decode's row is its number: no search is needed.
    if TOKENS == 1:
        row = first + tile
        query, queries = row, 1
    else:
        row = _row_of_tile(starts_ptr, tile, rows, first, end, TOKENS)
        begin = tl.minimum(tl.maximum(tl.load(starts_ptr + row), first), end)
        stop = tl.minimum(tl.maximum(tl.load(starts_ptr + row + 1), first), end)
        query = begin + (tile - (begin - first) // TOKENS - row) * TOKENS
        queries = tl.minimum(stop - query, TOKENS)
        if queries <= 0:
            return
    # A token's position in its row is its number less this.
    before = tl.load(starts_ptr + row + 1) - tl.load(contexts_ptr + row)
    reach = query + queries - before
    length = split_length(reach, least, splits, BLOCK_N)
    low = split * length
    # Such a row selects all it has; its scores are never read.
    if (reach <= TOP_K) | (low >= reach):
        return
    high = tl.minimum(low + length, reach)

    head = tl.arange(0, HEADS)
    real = head < HQ
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    if TOKENS == 1:
        own = query.to(tl.int64)
        q = load_part(q_ptr + own * q_stride + head * DIM, real, DIM, LANES)
        weights = tl.load(head_weights_ptr + own * weights_stride + head, mask=real, other=0.0)
        weights = weights.to(tl.float32) * scale
    for start in range(low, high, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < high
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        at = keys_ptr + block * (BLOCK_SIZE * DIM) + token % BLOCK_SIZE * DIM
        key = load_part(at, inside, DIM, LANES).to(q_ptr.dtype.element_ty)
        key_scale = 1.0
        if key_scale_ptr is not None:
            scale_at = key_scale_ptr + block * BLOCK_SIZE + token % BLOCK_SIZE
            key_scale = tl.load(scale_at, mask=inside, other=0.0)
        if TOKENS == 1:
            score = _score_keys(key, key_scale, q, weights)
            to = scores_ptr + (query - first).to(tl.int64) * width + token
            tl.store(to, score, mask=inside)
        else:
            # Keys stay in registers while the queries that share them pass by.
            for number in range(queries):
                own = (query + number).to(tl.int64)
                q = load_part(q_ptr + own * q_stride + head * DIM, real, DIM, LANES)
                weights_at = head_weights_ptr + own * weights_stride + head
                weights = tl.load(weights_at, mask=real, other=0.0).to(tl.float32) * scale
                score = _score_keys(key, key_scale, q, weights)
                to = scores_ptr + (own - first) * width + token
                tl.store(to, score, mask=inside & (token <= own - before))


def index_scores(
    tokens: IndexTokens,
    shape: IndexShape,
    cache: IndexCache,
    step: AttentionMetaData,
    piece: Piece,
) -> torch.Tensor:
    """Compute scores [tokens of the piece, width] float32 of rotated queries, as far as each
    reaches, for queries that reach more than top_k tokens; undefined elsewhere."""
    q, tables = tokens.q, step.block_tables
    rows = step.context_lens.shape[0]
    scores = torch.empty((piece.tokens, piece.width), dtype=torch.float32, device=q.device)
    together = 1 if piece.decodes else _TOKENS
    tiles = piece.tokens if piece.decodes else piece.tokens // together + rows
    wanted = triton.cdiv(_PROGRAMS_PER_UNIT * compute_units(q.device), tiles)
    splits = max(1, min(wanted, triton.cdiv(piece.width, _LEAST_KEYS)))
    _index_scores_kernel[(tiles, splits)](
        q, tokens.weights, cache.keys, cache.scale, tables, step.context_lens,
        step.query_starts, scores,
        tables.stride(0), q.stride(0), tokens.weights.stride(0), rows, piece.first, piece.end,
        piece.width, _LEAST_KEYS, splits, shape.scale,
        HQ=shape.num_heads, DIM=shape.dim, TOP_K=shape.top_k, TOKENS=together,
        BLOCK_SIZE=cache.block_size, BLOCK_N=_BLOCK_N, num_warps=4, num_stages=2,
    )  # fmt: skip
    return scores
