"""A gated delta net as a block of the decoder: its projections, and their place in a checkpoint.

A hidden state is projected to queries, keys, values, output gates, and each head's rates of
learning and forgetting. A checkpoint may order them by key head; here all heads' queries come
before all heads' keys and so on, in the order of the convolution's channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from atom.model_ops.attention import DeltaNetState
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.linear_attention import DeltaNetWeight, DeltaTokens, DeltaWeight
from atom.model_ops.parallel import Region
from atom.model_ops.placement import Placement
from atom.models.decoder.conv_taps import ConvPart, ConvTaps
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.projection import Projection
from atom.sizing.states import DeltaShape, StateKind


class GatedDeltaNet(nn.Module):
    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, DeltaShape)
        assert isinstance(attention, StateAttention)
        net = attention.net
        self._shape, self._net, self._ranks = shape, net, build.ranks
        own = spec.own_matrices
        if net.kind is StateKind.DELTA_NET_BY_KEY_HEAD:
            values = shape.heads_per_key * shape.value_dim
            self.in_proj_qkvz = _ordered(
                own["in_proj_qkvz"], (shape.key_dim, shape.key_dim, values, values), shape, build
            )
            self.in_proj_ba = _ordered(own["in_proj_ba"], (shape.heads_per_key,) * 2, shape, build)
        else:
            qkv, z = own["in_proj_qkv"], own["in_proj_z"]
            columns = (0, qkv.columns)
            regions = [Region(rows, columns) for rows in self._channels()]
            regions.append(build.ranks.region(z))
            self.in_proj_qkvz = Linear((qkv, qkv, qkv, z), build, regions=regions)
            self.in_proj_ba = Linear((own["in_proj_b"], own["in_proj_a"]), build)
        self.o_proj = Linear((own["out_proj"],), build)
        parts = [ConvPart("conv1d", net.conv_channels, own) for own in self._channels()]
        self.conv1d = ConvTaps(parts, net.conv_width)
        of_heads = torch.empty(2, shape.value_heads, dtype=torch.float32)
        self.of_heads = nn.Parameter(of_heads, requires_grad=False)
        self.norm = RMSNorm(shape.value_dim, spec.norm.eps, ops=build.ops)
        self.attn = DeltaNetState(shape, build.ops)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of each head's decay parameters."""
        heads, net = self._ranks.of(self._net.value_heads), self._net
        for row, own in enumerate(("A_log", "dt_bias")):
            target = self.of_heads.data[row]
            yield Placement(f"{name}.{own}", (net.value_heads,), (heads,), target)

    def _channels(self) -> list[tuple[int, int]]:
        """Return the first and end of this rank's queries, keys and values among the channels of
        all heads."""
        net, first, found = self._net, 0, []
        keys = net.key_heads * net.key_dim
        for size in (keys, keys, net.value_heads * net.value_dim):
            own_first, own_end = self._ranks.of(size)
            found.append((first + own_first, first + own_end))
            first += size
        return found

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the value heads' results, [T, Hv·Dv]; the layer applies `o_proj`."""
        x = h.tensor() if isinstance(h, Normed) else h
        qkv, z = self.in_proj_qkvz(x).tensor_split([self._shape.conv_channels], dim=1)
        b, a = self.in_proj_ba(x).chunk(2, dim=1)
        rule = DeltaWeight(*self.of_heads.data)
        weight = DeltaNetWeight(self.conv1d.taps.data, rule, self.norm.norm)
        gated: torch.Tensor = self.attn(DeltaTokens(qkv, b, a), z, weight)
        return gated


def _ordered(matrix: Projection, parts: Sequence[int], shape: DeltaShape, build: Build) -> Linear:
    """Put a matrix part by part that a checkpoint has by key head."""
    return Linear((matrix,), build, orders={matrix.name: _part_by_part(parts, shape.key_heads)})


def _part_by_part(parts: Sequence[int], heads: int) -> torch.Tensor:
    """Return the order that puts the rows of `heads` heads part by part; a checkpoint has them head
    by head. parts: rows of one head's parts."""
    by_head = torch.arange(heads * sum(parts)).view(heads, -1)
    return torch.cat([part.flatten() for part in by_head.split(list(parts), dim=1)])
