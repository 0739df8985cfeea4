"""A gated delta net as a block of the decoder: its projections, and their place in a checkpoint.

A hidden state is projected to queries, keys, values and gates of the result, and to how much each
head learns and forgets. A checkpoint has these by key head; here queries of all heads stand before
keys of all heads and so on, as the convolution's channels do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.attention import DeltaNetState
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.linear_attention import DeltaShape, DeltaWeight
from atom.model_ops.placement import Placement
from atom.models.spec import LayerSpec


class GatedDeltaNet(nn.Module):
    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        shape, net = spec.attention, spec.facts.attention.state
        assert isinstance(shape, DeltaShape)
        assert net is not None
        self._shape, self._net, self._ranks = shape, net, build.ranks
        inputs, gates, out = (
            spec.matrices[f"linear_attn.{name}"]
            for name in ("in_proj_qkvz", "in_proj_ba", "out_proj")
        )
        values = shape.heads_per_key * shape.value_dim
        order = _part_by_part([shape.key_dim, shape.key_dim, values, values], shape.key_heads)
        self.in_proj_qkvz = Linear((inputs,), build, orders={inputs.name: order})
        order = _part_by_part([shape.heads_per_key] * 2, shape.key_heads)
        self.in_proj_ba = Linear((gates,), build, orders={gates.name: order})
        self.o_proj = Linear((out,), build)
        conv = torch.empty(shape.conv_channels, shape.conv_width)
        self.conv = nn.Parameter(conv, requires_grad=False)
        of_heads = torch.empty(2, shape.value_heads, dtype=torch.float32)
        self.of_heads = nn.Parameter(of_heads, requires_grad=False)
        self.norm = RMSNorm(shape.value_dim, spec.norm.eps, ops=build.ops)
        self.attn = DeltaNetState(shape, build.ops)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where the convolution and what each head forgets by come from in a checkpoint."""
        heads, net = self._ranks.of(self._net.value_heads), self._net
        for row, own in enumerate(("A_log", "dt_bias")):
            target = self.of_heads.data[row]
            yield Placement(f"{name}.{own}", (net.value_heads,), (heads,), target)
        first = of_rank = 0
        keys = net.key_heads * net.key_dim
        for size in (keys, keys, net.value_heads * net.value_dim):
            own_first, own_end = self._ranks.of(size)
            end = of_rank + own_end - own_first
            yield Placement(
                f"{name}.conv1d.weight",
                (net.conv_channels, 1, net.conv_width),
                ((first + own_first, first + own_end), (0, 1), (0, net.conv_width)),
                self.conv.data[of_rank:end],
            )
            first, of_rank = first + size, end

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what every value head found, [T, Hv·Dv]; `o_proj` is left to the layer."""
        x = h.tensor() if isinstance(h, Normed) else h
        qkv, z = self.in_proj_qkvz(x).tensor_split([self._shape.conv_channels], dim=1)
        b, a = self.in_proj_ba(x).chunk(2, dim=1)
        a_log, dt_bias = self.of_heads.data
        found = self.attn(qkv, (b, a), self.conv.data, DeltaWeight(a_log, dt_bias))
        gated: torch.Tensor = self.norm.of(found) * F.silu(z).view_as(found)
        return gated.flatten(1)


def _part_by_part(parts: Sequence[int], heads: int) -> torch.Tensor:
    """The order in which rows of `heads` heads stand part by part, which a checkpoint has head by
    head. parts: rows of one head's."""
    by_head = torch.arange(heads * sum(parts)).view(heads, -1)
    return torch.cat([part.flatten() for part in by_head.split(list(parts), dim=1)])
