"""SelfAttention: grouped-query heads with rotary positions, and optional norms, sinks and gates.

It returns the heads' results; the layer applies the output projection. mla.py has latent heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.attention import Attention
from atom.model_ops.index_values import SpanIndexShape, SpanTokens
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding, head_order
from atom.model_ops.values import AttentionShape
from atom.model_ops.whole_heads_norm import WholeHeadsNorm, norm_queries_and_keys
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import GroupedAttention, QkNorm


class SelfAttention(nn.Module):
    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build) -> None:
        super().__init__()
        assert isinstance(spec.attention, AttentionShape)
        facts = spec.facts.attention
        assert isinstance(facts, GroupedAttention)
        q, k, o = (spec.matrices[f"self_attn.{name}_proj"] for name in "qko")
        own = () if facts.values.are_keys else (spec.matrices["self_attn.v_proj"],)
        order = head_order(spec.rope)
        self._gate_heads = spec.attention.num_heads if facts.matrices.output_gate else 0
        q_order = _behind_queries(order) if self._gate_heads else order
        self.qkv_proj = Linear((q, k, *own), build, orders={q.name: q_order, k.name: order})
        self.o_proj = Linear((o,), build)
        norms, size = None, spec.attention.head_dim
        rotated = facts.qk_norm is QkNorm.ROTATED_HEADS
        self.q_norm: nn.Module
        self.k_norm: nn.Module
        self._whole_norms: tuple[WholeHeadsNorm, WholeHeadsNorm] | None = None
        if facts.qk_norm.of_heads:
            norms = (
                build_norm(size, spec.norm, build, order),
                build_norm(size, spec.norm, build, order),
            )
            if rotated:  # as checkpoints with such call them
                self.query_layernorm, self.key_layernorm = norms
            else:
                self.q_norm, self.k_norm = norms
        elif facts.qk_norm is QkNorm.WHOLE:
            whole = [WholeHeadsNorm(matrix, spec.norm.eps, build, order) for matrix in (q, k)]
            self.q_norm, self.k_norm = whole
            self._whole_norms = (whole[0], whole[1])
        elif spec.head_norm is not None:
            self.head_norm = RMSNorm(size, spec.head_norm.eps, ops=build.ops, is_unit=True)
            norms = (self.head_norm, self.head_norm)
        shape, self.sinks = spec.attention, None
        self._all_heads = facts.num_heads
        self._heads = build.ranks.of(self._all_heads)
        self._build = build
        if shape.has_sinks:
            sinks = torch.empty(shape.num_heads, dtype=torch.float32)
            self.sinks = nn.Parameter(sinks, requires_grad=False)
            shape = replace(shape, sinks=sinks)
        self._key_order = order
        self._values_are_keys = facts.values.are_keys
        self.value_norm = None
        if facts.values.normed:
            self.value_norm = RMSNorm(size, spec.norm.eps, ops=build.ops, is_unit=True)
        self._value_dim = facts.value_dim
        self._value_scale = spec.value_scale
        self._index = spec.index if isinstance(spec.index, SpanIndexShape) else None
        if self._index is not None:
            asking, keys = spec.own_matrices["index_q_proj"], spec.own_matrices["index_k_proj"]
            self.index_q_proj, self.index_k_proj = Linear((asking,), build), Linear((keys,), build)
            self.index_q_norm = build_norm(self._index.dim, spec.norm, build)
            self.index_k_norm = build_norm(self._index.dim, spec.norm, build)
        self.attn = Attention(
            shape,
            rotary,
            norms=norms,
            ops=build.ops,
            norms_rotated=rotated,
            index=self._index,
        )

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the sinks, if there are any."""
        if self.sinks is not None:
            region = (self._heads,)
            yield Placement(
                f"{name}.sinks", (self._all_heads,), region, self.sinks.data,
                aliases=(f"{name}.attention_sink_bias",),
            )  # fmt: skip

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the heads' results, [T, Hq·D]; the layer applies `o_proj`."""
        asking = None
        if self._index is not None:
            h = h.tensor() if isinstance(h, Normed) else h
            asking = self._asking(h, self._index.dim)
        qkv, gate = self.qkv_proj(h), None
        if self._gate_heads:
            qkv, gate = self._without_gates(qkv)
        if self._whole_norms is not None:
            norm_queries_and_keys(qkv, self._whole_norms, self._build)
        if self._values_are_keys:
            qkv = torch.cat((qkv, self._keys_as_values(qkv)), dim=1)
        if self.value_norm is not None:
            values = self._values(qkv)
            values.copy_(
                self.value_norm.of(values.reshape(-1, values.shape[2]).contiguous()).view_as(values)
            )
        if self._value_dim < self.attn.shape.head_dim:
            qkv = self._with_wide_values(qkv)
        attended: torch.Tensor = self.attn(qkv, positions, asking)
        if self._value_dim < self.attn.shape.head_dim:
            heads = attended.unflatten(1, (-1, self.attn.shape.head_dim))
            attended = heads[..., : self._value_dim].flatten(1)
        if self._value_scale != 1.0:
            attended = attended * self._value_scale
        return attended if gate is None else attended * gate.sigmoid()

    def _asking(self, x: torch.Tensor, dim: int) -> SpanTokens:
        """Project hidden states x [T, H] to the indexer's tokens."""
        q: torch.Tensor = self.index_q_proj(x)
        asking = self.index_q_norm.of(q.unflatten(1, (-1, dim)))
        return SpanTokens(asking, self.index_k_norm.of(self.index_k_proj(x)))

    def _values(self, qkv: torch.Tensor) -> torch.Tensor:
        """View the values of all heads [T, Hkv, D]."""
        return qkv.unflatten(1, (-1, self.attn.shape.head_dim))[:, -self.attn.shape.num_kv_heads :]

    def _keys_as_values(self, qk: torch.Tensor) -> torch.Tensor:
        """Copy keys [T, Hkv·D] in the order of values, which is the checkpoint's."""
        keys = self._values(qk)
        if self._key_order is not None:
            keys = keys[..., self._key_order.argsort().to(keys.device)]
        return keys.flatten(1)

    def _with_wide_values(self, projected: torch.Tensor) -> torch.Tensor:
        """Fill each value up to the width of a key, which the cache keeps of both."""
        shape = self.attn.shape
        others = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
        values = projected[:, others:].unflatten(1, (shape.num_kv_heads, -1))
        wide = F.pad(values, (0, shape.head_dim - self._value_dim))
        return torch.cat((projected[:, :others], wide.flatten(1)), dim=1)

    def _without_gates(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take gates [T, Hq·D] out of the projections' result, in which each head has its own after
        its query."""
        size = self._gate_heads * self.attn.shape.head_dim
        gated, kv = projected.tensor_split([2 * size], dim=1)
        queries, gates = gated.unflatten(1, (self._gate_heads, 2, -1)).unbind(2)
        return torch.cat((queries.flatten(1), kv), dim=1), gates.flatten(1)


def _behind_queries(order: torch.Tensor | None) -> torch.Tensor | None:
    """Return the order of a head's query and of its gate, whose elements keep their order."""
    return None if order is None else torch.cat((order, torch.arange(len(order)) + len(order)))
