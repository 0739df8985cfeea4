"""DeltaNetState: the convolution and the gated delta rule of one layer, over a state per sequence.

Keeps of each slot a matrix per value head, and what the convolution still has to see. A row that
begins finds zeros, whatever the slot's last sequence left: nothing is cleared when a row ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention.cached import StateLayer
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear_attention import DeltaNetWeight, DeltaSlots, DeltaTokens
from atom.sizing.states import DeltaShape


class DeltaNetState(StateLayer):
    """Gated delta net (arXiv 2412.06464) between its projections."""

    _kept: DeltaSlots | None

    def __init__(self, shape: DeltaShape, ops: Ops) -> None:
        super().__init__(ops)
        self.shape = shape

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """A matrix [Dk, Dv] of each value head, and the channels of the tokens before the next."""
        shape = self.shape
        return (
            (shape.value_heads, shape.key_dim, shape.value_dim),
            (shape.conv_channels, shape.conv_width - 1),
        )

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        states, tails = tensors
        self._kept = DeltaSlots(self.shape, states, tails)

    def release(self) -> None:
        self._kept = None
        self._running, self._saved = (), ()

    def forward(self, tokens: DeltaTokens, z: torch.Tensor, weight: DeltaNetWeight) -> torch.Tensor:
        """Compute what comes before the convolution, and z [T, Hv·Dv] → [T, Hv·Dv]."""
        assert self._kept is not None, "allocated before a step"
        return self._ops.gated_delta_net(tokens, z, weight, self._kept, self._step)
