"""Kimi Delta Attention as a block of the decoder: its projections, and their place in a checkpoint.

A checkpoint has one convolution each for queries, keys and values; here they are one. The decay of
each key channel and the output gates are low-rank projections, with as many inner elements as a
head has.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.attention import KimiDeltaState
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.linear_attention import DeltaWeight
from atom.model_ops.placement import Placement
from atom.models.decoder.conv_taps import ConvPart, ConvTaps
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.states import DeltaShape


class KimiDeltaAttention(nn.Module):
    """A gated delta net that forgets by channel (arXiv 2510.26692)."""

    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, DeltaShape)
        assert isinstance(attention, StateAttention)
        net = attention.net
        own = spec.own_matrices
        qkv = [own[f"{part}_proj"] for part in "qkv"]
        self.qkv_proj = Linear(qkv, build)
        self.inner_proj = Linear((own["f_a_proj"], own["g_a_proj"]), build)
        self.f_b_proj = Linear((own["f_b_proj"],), build)
        self.g_b_proj = Linear((own["g_b_proj"],), build)
        self.b_proj = Linear((own["b_proj"],), build)
        self.o_proj = Linear((own["o_proj"],), build)
        channels = [
            ConvPart(f"{part}_conv1d", matrix.rows, build.ranks.region(matrix).rows)
            for part, matrix in zip("qkv", qkv, strict=True)
        ]
        self.conv1d = ConvTaps(channels, net.conv_width)
        self._net, self._heads = net, build.ranks.of(net.value_heads)
        heads, size = shape.value_heads, shape.key_dim
        self.a_log = nn.Parameter(torch.empty(heads, dtype=torch.float32), requires_grad=False)
        bias = torch.empty(heads, size, dtype=torch.float32)
        self.dt_bias = nn.Parameter(bias, requires_grad=False)
        self.o_norm = RMSNorm(shape.value_dim, spec.norm.eps, ops=build.ops)
        self.attn = KimiDeltaState(shape, build.ops)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the decay parameters of each head and each channel."""
        net, heads, one = self._net, self._heads, (0, 1)
        rates = (one, one, heads, one)
        yield Placement(f"{name}.A_log", (1, 1, net.value_heads, 1), rates, self.a_log.data)
        size = net.key_dim
        channels = (heads[0] * size, heads[1] * size)
        shape = (net.value_heads * size,)
        yield Placement(f"{name}.dt_bias", shape, (channels,), self.dt_bias.data)

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the heads' results, [T, Hv·Dv]; the layer applies `o_proj`."""
        x = h.tensor() if isinstance(h, Normed) else h
        forgets, gates = self.inner_proj(x).split([self._net.key_dim, self._net.value_dim], dim=1)
        a = self.f_b_proj(forgets.contiguous()).unflatten(1, self.dt_bias.shape)
        weight = DeltaWeight(self.a_log.data, self.dt_bias.data)
        found = self.attn(self.qkv_proj(x), (self.b_proj(x), a), self.conv1d.w, weight)
        gate = self.g_b_proj(gates.contiguous()).view_as(found)
        gated: torch.Tensor = self.o_norm.of(found) * gate.sigmoid()
        return gated.flatten(1)
