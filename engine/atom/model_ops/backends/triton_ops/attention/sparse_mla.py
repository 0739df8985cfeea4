"""Sparse MLA (DeepSeek Sparse Attention): an indexer's selection of tokens, and attention to these.

Scores of a step are computed piece by piece, so memory stays bounded for any context; a captured
decode step usually has one piece. Absorbed queries are bounded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.attention.indexer_scores import Piece, index_scores
from atom.model_ops.backends.triton_ops.attention.indexer_store import store_index
from atom.model_ops.backends.triton_ops.attention.indexer_topk import index_select
from atom.model_ops.backends.triton_ops.attention.mla import by_head, up_by_head
from atom.model_ops.backends.triton_ops.attention.sparse_mla_decode import sparse_mla_decode
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight, Rotary
from atom.sizing.overheads import MOST_SCORES
from atom.utils.forward_context import AttentionMetaData

_MOST_HEADS, _LARGEST_KEY = 128, 256
_ABSORBED = 2**25  # elements of queries that are absorbed at once


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    if op != "select_tokens":
        return ()
    return tuple(
        f"computes indexers of up to {_MOST_HEADS} heads and keys of up to {_LARGEST_KEY}, not "
        f"{shape.num_heads} and {shape.dim}"
        for shape in case.layers.index
        if shape.num_heads > _MOST_HEADS or shape.dim > _LARGEST_KEY
    )


def select_tokens(
    tokens: IndexTokens,
    shape: IndexShape,
    rotary: Rotary,
    cache: IndexCache,
    step: AttentionMetaData,
) -> torch.Tensor | None:
    store_index(tokens, shape, rotary, cache, step.slot_mapping)
    if step.max_context_len <= shape.top_k:
        return None
    q = tokens.q
    selected = torch.empty((q.shape[0], shape.top_k), dtype=torch.int64, device=q.device)
    for piece in _pieces(q.shape[0], step):
        scores = index_scores(tokens, shape, cache, step, piece)
        index_select(scores, shape, step, piece, selected, block_size=cache.block_size)
    return selected


def _pieces(tokens: int, step: AttentionMetaData) -> Iterator[Piece]:
    width, decodes = step.max_context_len, step.num_decodes == tokens
    together = max(1, MOST_SCORES // width)
    for first in range(0, tokens, together):
        yield Piece(first, min(first + together, tokens), width, decodes)


def sparse_mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    selected: torch.Tensor,
) -> torch.Tensor:
    q = tokens.q
    keys, values = up_by_head(up, shape)
    size = (q.shape[0], shape.num_heads, shape.value_dim)
    out = torch.empty(size, dtype=q.dtype, device=q.device)
    together = max(1, _ABSORBED // (shape.num_heads * shape.kv_rank))
    for first in range(0, q.shape[0], together):
        own = slice(first, first + together)
        still, q_rope = q[own].split([shape.nope_dim, shape.rope_dim], dim=-1)
        queries = (by_head(still, keys), q_rope)
        found = sparse_mla_decode(queries, shape, cache, selected[own])
        by_head(found, values.transpose(1, 2), out[own])
    return out.flatten(1)
