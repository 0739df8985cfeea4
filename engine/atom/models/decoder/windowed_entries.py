"""Attention to a window and to compressed entries as a block of the decoder (DeepSeek V4): its
projections, and their place in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from atom.model_ops.attention import CompressedAttention
from atom.model_ops.compressed_attention import (
    CompressedLayer,
    CompressedShape,
    CompressedTokens,
    EntryWeight,
)
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import EntriesAttention


class WindowedEntriesAttention(nn.Module):
    """Attention with compressed queries, one key for all heads, and the projections of entries."""

    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, CompressedShape)
        assert isinstance(attention, EntriesAttention)
        net = attention.compressed
        own, size = spec.own_matrices, shape.head_dim
        self.q_a_proj = Linear((own["q_a_proj"],), build)
        self.q_a_norm = build_norm(net.query_rank, spec.norm, build)
        self.q_b_proj = Linear((own["q_b_proj"],), build)
        self.head_norm = RMSNorm(size, spec.norm.eps, ops=build.ops, is_unit=True)
        self.kv_proj = Linear((own["kv_proj"],), build)
        self.kv_norm = build_norm(size, spec.norm, build)
        self.compressor = Compressor(spec, shape, build) if shape.rate else None
        self.o_a_proj = Linear((own["o_a_proj"],), build)
        self.o_b_proj = Linear((own["o_b_proj"],), build)
        self._output_rank = net.output_rank
        self._all_heads = attention.num_heads
        self._heads = build.ranks.of(self._all_heads)
        sinks = torch.empty(shape.num_heads, dtype=torch.float32)
        self.sinks = nn.Parameter(sinks, requires_grad=False)
        layer = CompressedLayer(replace(shape, sinks=sinks), *self._entry_weights())
        self.attn = CompressedAttention(layer, net, rotary, build.ops)

    def _entry_weights(self) -> tuple[EntryWeight | None, EntryWeight | None]:
        if self.compressor is None:
            return None, None
        indexer = self.compressor.indexer
        return self.compressor.w, None if indexer is None else indexer.w

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the sinks."""
        own, sinks = (self._heads,), self.sinks.data
        yield Placement(f"{name}.sinks", (self._all_heads,), own, sinks)

    def forward(self, h: Normed, positions: torch.Tensor) -> torch.Tensor:
        """Return the heads' results, [T, Hq·D]; the layer applies `o_proj`."""
        x = h.tensor()
        compressed = self.q_a_norm.of(self.q_a_proj(x))
        heads = self.q_b_proj(compressed).unflatten(1, (-1, self.attn.layer.shape.head_dim))
        q = self.head_norm.of(heads)
        kept = [self.kv_norm.of(self.kv_proj(x))]
        asking = weights = None
        if self.compressor is not None:
            kept += self.compressor(x)
            if self.compressor.indexer is not None:
                asking, weights = self.compressor.indexer.asking(x, compressed)
        tokens = CompressedTokens(q, torch.cat(kept, dim=1), asking, weights)
        attended: torch.Tensor = self.attn(tokens, positions)
        return attended

    def o_proj(self, attended: torch.Tensor) -> torch.Tensor:
        """Project each group of heads by itself, then all together: [T, Hq·D] → [T, H], with
        several ranks this one's share of the sum."""
        blocks = self.o_a_proj.w.data.unflatten(0, (-1, self._output_rank))  # [groups, rank, in]
        heads = attended.unflatten(1, (len(blocks), -1)).transpose(0, 1)
        found = torch.bmm(heads, blocks.transpose(1, 2)).transpose(0, 1)
        projected: torch.Tensor = self.o_b_proj(found.flatten(1))
        return projected


class EntryProjections(nn.Module):
    """Project a token's contributions to entries and their weights; norm the entries' sums. name:
    of the module below its layer; size: elements of an entry."""

    def __init__(self, spec: LayerSpec, name: str, size: int, build: Build) -> None:
        super().__init__()
        shape, own = spec.attention, spec.own_matrices
        assert isinstance(shape, CompressedShape)
        self.kv_proj = Linear((own[f"{name}.kv_proj"],), build)
        self.gate_proj = Linear((own[f"{name}.gate_proj"],), build)
        self.kv_norm = build_norm(size, spec.norm, build)
        places = torch.empty(shape.rate, shape.series * size, dtype=torch.float32)
        self.position_bias = nn.Parameter(places, requires_grad=False)

    @property
    def w(self) -> EntryWeight:
        """Return the operations' view of the weights."""
        return EntryWeight(self.position_bias.data, self.kv_norm.norm)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the parameter."""
        yield Placement.whole(f"{name}.position_bias", self.position_bias.data)

    def added(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Project x [T, H] → contributions and their weights, [T, series · D] each."""
        return [self.kv_proj(x), self.gate_proj(x)]


class Compressor(EntryProjections):
    """Make a layer's entries, and the entries of its indexer if it has one."""

    def __init__(self, spec: LayerSpec, shape: CompressedShape, build: Build) -> None:
        super().__init__(spec, "compressor", shape.head_dim, build)
        self.indexer = None if shape.index is None else EntryIndexer(spec, shape, build)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Compute the contributions of x [T, H] to entries and to the indexer's entries."""
        indexed = [] if self.indexer is None else self.indexer.added(x)
        return self.added(x) + indexed


class EntryIndexer(EntryProjections):
    """Projections by which a layer chooses the entries that it attends to."""

    def __init__(self, spec: LayerSpec, shape: CompressedShape, build: Build) -> None:
        super().__init__(spec, "compressor.indexer", shape.index_dim, build)
        own = spec.own_matrices
        self._dim = shape.index_dim
        self.q_b_proj = Linear((own["compressor.indexer.q_b_proj"],), build)
        weights = Linear((own["compressor.indexer.scorer.weights_proj"],), build)
        self.scorer = nn.ModuleDict({"weights_proj": weights})

    def asking(
        self, x: torch.Tensor, compressed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Project hidden states x [T, H] and compressed queries [T, rank] → queries [T, heads, dim]
        and how much each head's opinion counts [T, heads]."""
        q: torch.Tensor = self.q_b_proj(compressed)
        return q.unflatten(1, (-1, self._dim)), self.scorer["weights_proj"](x)
