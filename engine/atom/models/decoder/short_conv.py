"""A short convolution between two gates as a block of the decoder (LFM2)."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.attention import ConvState
from atom.model_ops.layernorm import Normed
from atom.model_ops.linear import Build, Linear
from atom.models.decoder.conv_taps import ConvPart, ConvTaps
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.states import ConvShape


class GatedShortConv(nn.Module):
    """Computes gate_out · convolution(gate_in · values)."""

    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        shape, attention = spec.attention, spec.facts.attention
        assert isinstance(shape, ConvShape)
        assert isinstance(attention, StateAttention)
        net = attention.net
        *parts, output = spec.matrices.values()
        self.in_proj = Linear(parts, build)
        self.o_proj = Linear((output,), build)
        own = build.ranks.of(net.conv_channels)
        channels = ConvPart("conv1d", net.conv_channels, own)
        self.conv1d = ConvTaps([channels], net.conv_width, bias=net.conv_bias, has_silu=False)
        self.attn = ConvState(shape, build.ops)

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the gated channels, [T, C]; `o_proj` is left to the layer."""
        gate_in, gate_out, values = self.in_proj(h).chunk(3, dim=1)
        found: torch.Tensor = gate_out * self.attn(gate_in * values, self.conv1d.w)
        return found
