"""Latent attention as a block of the decoder: its projections, and their place in a checkpoint.

A hidden state is projected to one entry for all heads (latent and key) and to queries, which may
also go through a compressed form. The matrix that unfolds latents belongs to the attention.
"""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.attention import MLAAttention, MLAParts
from atom.model_ops.index_values import IndexShape, IndexTokens
from atom.model_ops.layernorm import LayerNorm, Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.rotary_embedding import RotaryEmbedding, head_order
from atom.model_ops.values import LatentShape, LatentTokens
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.indexer import SharedIndexer
from atom.sizing.attention.kinds import LatentAttention

# The norms of compressed queries and latents do not read config.json's epsilon.
_EPS = 1e-6


class MLASelfAttention(nn.Module):
    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, LatentShape)
        assert isinstance(attention, LatentAttention)
        latent = attention.latent
        self._shape, self._query_rank = shape, latent.query_rank
        own = spec.own_matrices
        order = head_order(spec.rope)
        entry, up = own["kv_a_proj_with_mqa"], own["kv_b_proj"]
        query = own["q_proj" if latent.query_rank is None else "q_b_proj"]
        orders = {
            entry.name: _tail_order(shape.kv_rank, order),
            query.name: _tail_order(shape.nope_dim, order),
        }
        first = query if latent.query_rank is None else own["q_a_proj"]
        self.q_kv_a_proj = Linear((first, entry), build, orders)
        if latent.query_rank is not None:
            self.q_a_layernorm = RMSNorm(latent.query_rank, _EPS, ops=build.ops)
            self.q_b_proj = Linear((query,), build, orders)
        self.kv_a_layernorm = RMSNorm(shape.kv_rank, _EPS, ops=build.ops)
        self.kv_b_proj = Linear((up,), build)
        self.o_proj = Linear((own["o_proj"],), build)
        index = spec.index if isinstance(spec.index, IndexShape) else None
        parts = MLAParts(rotary, self.kv_a_layernorm, self.kv_b_proj)
        self.attn = MLAAttention(
            shape,
            parts,
            index,
            ops=build.ops,
            shares_index=isinstance(latent.index, SharedIndexer),
        )
        self.indexer = None if index is None else Indexer(spec, index, build)

    def forward(self, h: Normed, positions: torch.Tensor) -> torch.Tensor:
        """Return the heads' results, [T, Hq·value_dim]; the layer applies `o_proj`."""
        if self.indexer is not None:
            return self._attend_sparsely(h.tensor(), positions)
        tokens, _ = self._tokens(self.q_kv_a_proj(h))
        attended: torch.Tensor = self.attn(tokens, positions)
        return attended

    def _attend_sparsely(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        assert self.indexer is not None
        tokens, compressed = self._tokens(self.q_kv_a_proj(x))
        attended: torch.Tensor = self.attn(tokens, positions, self.indexer(x, compressed))
        return attended

    def _tokens(self, projected: torch.Tensor) -> tuple[LatentTokens, torch.Tensor]:
        """Return the step's tokens, and the compressed queries."""
        rest = projected.shape[1] - self._shape.entry_dim
        q, entries = projected.split([rest, self._shape.entry_dim], dim=1)
        compressed = q
        if self._query_rank is not None:
            compressed = self.q_a_layernorm.of(q.contiguous())
            q = self.q_b_proj(compressed)
        return LatentTokens(q.unflatten(1, (self._shape.num_heads, -1)), entries), compressed


class Indexer(nn.Module):
    """Projections by which a layer chooses the tokens that it attends to (DeepSeek-V3.2, GLM-5)."""

    def __init__(self, spec: LayerSpec, index: IndexShape, build: Build) -> None:
        super().__init__()
        self._index = index
        queries, keys, weights = (
            spec.matrices[f"self_attn.indexer.{name}"] for name in ("wq_b", "wk", "weights_proj")
        )
        order = _index_order(index)
        orders = {queries.name: order, keys.name: order}
        self.wq_b = Linear((queries,), build, orders)
        self.wk = Linear((keys,), build, orders)
        self.weights_proj = Linear((weights,), build)
        self.k_norm = LayerNorm(index.dim, _EPS, order)

    def forward(self, x: torch.Tensor, compressed: torch.Tensor) -> IndexTokens:
        """Project hidden states x [T, H] and compressed queries [T, rank] to the indexer's
        tokens."""
        q: torch.Tensor = self.wq_b(compressed)
        keys = self.k_norm.of(self.wk(x))
        return IndexTokens(q.unflatten(1, (-1, self._index.dim)), keys, self.weights_proj(x))


def _index_order(index: IndexShape) -> torch.Tensor | None:
    """Return the order of an indexer's elements, of which the first rotate."""
    if not index.interleaved:
        return None
    turning = torch.arange(index.rope_dim)
    return torch.cat((turning[0::2], turning[1::2], torch.arange(index.rope_dim, index.dim)))


def _tail_order(still: int, order: torch.Tensor | None) -> torch.Tensor | None:
    """Return the order of elements of which the first `still` stay and the rest are ordered."""
    return None if order is None else torch.cat((torch.arange(still), still + order))
