"""Experts: the gated MLPs of a layer that has many, of which each token goes through a few."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from atom.model_ops.linear import Build
from atom.model_ops.routing import Routed
from atom.model_ops.stacked_linear import StackedLinear
from atom.model_ops.values import ExpertsWeight, Gating, Stream
from atom.sizing.layers import Stacking
from atom.sizing.weights import Projection


class Experts(nn.Module):
    """matrices: gate, up and down, in as many copies as there are experts; stacking: see
    StackedLinear."""

    def __init__(
        self,
        matrices: Sequence[Projection],
        activation: Gating,
        build: Build,
        *,
        stacking: Stacking = Stacking.APART,
    ) -> None:
        super().__init__()
        self._ops = build.ops
        self._activation = activation
        self.gate_up_proj = StackedLinear(matrices[:2], build, gating=activation, stacking=stacking)
        self.down_proj = StackedLinear(matrices[2:], build, stacking=stacking)

    @property
    def w(self) -> ExpertsWeight:
        """The operations' view of the weights."""
        return ExpertsWeight(self.gate_up_proj.w, self.down_proj.w, self._activation)

    def add(
        self, stream: Stream, x: torch.Tensor, routed: Routed, shared: torch.Tensor | None
    ) -> Stream:
        """The stream plus what each token's experts make of x [T, H], and plus shared [T, H]."""
        return self._ops.add_experts(stream, x, self.w, routed, shared)
