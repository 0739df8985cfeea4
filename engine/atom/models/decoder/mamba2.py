"""A Mamba-2 mixer as a block of the decoder: its projections, and their place in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.attention import SsdState
from atom.model_ops.layernorm import Normed
from atom.model_ops.linear import Build, Linear
from atom.model_ops.linear_attention import SsdWeight
from atom.model_ops.placement import Placement
from atom.models.decoder.conv_taps import ConvPart, ConvTaps
from atom.models.decoder.gated_norm import GatedGroupNorm
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.states import SsdShape


class Mamba2Mixer(nn.Module):
    """A state space model whose steps depend on its tokens; its output is gated and normed."""

    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, SsdShape)
        assert isinstance(attention, StateAttention)
        net = attention.net
        own = spec.own_matrices
        names = ("queries", "keys", "values", "gate", "steps")
        parts = [own[f"in_proj.{name}"] for name in names]
        self.in_proj = Linear(parts, build)
        self.o_proj = Linear((own["out_proj"],), build)
        held = [build.ranks.region(part).rows for part in parts[:3]]
        # A checkpoint's channels are values, keys and queries.
        keys, values = net.key_heads * net.key_dim, net.value_heads * net.value_dim
        firsts = (values + keys, values, 0)
        channels = [
            ConvPart("conv1d", net.conv_channels, (first + rows[0], first + rows[1]))
            for first, rows in zip(firsts, held, strict=True)
        ]
        self.conv1d = ConvTaps(channels, net.conv_width, bias=net.conv_bias)
        self.norm = GatedGroupNorm(values, net.key_heads, spec.norm.eps, build)
        self._all_heads, self._heads = net.value_heads, build.ranks.of(net.value_heads)
        of_heads = torch.empty(3, shape.value_heads, dtype=torch.float32)
        self.of_heads = nn.Parameter(of_heads, requires_grad=False)
        self._sizes = [shape.conv_channels, shape.value_heads * shape.value_dim, shape.value_heads]
        self.attn = SsdState(shape, build.ops)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of each head's decay, step bias and value skip (D)."""
        for row, own in enumerate(("A_log", "dt_bias", "D")):
            target = self.of_heads.data[row]
            yield Placement(f"{name}.{own}", (self._all_heads,), (self._heads,), target)

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the value heads' results, [T, Hv·Dv]; the layer applies `o_proj`."""
        qkv, gate, steps = self.in_proj(h).split(self._sizes, dim=1)
        found = self.attn(qkv, steps, self.conv1d.w, SsdWeight(*self.of_heads.data))
        normed: torch.Tensor = self.norm(found.flatten(1), gate)
        return normed
