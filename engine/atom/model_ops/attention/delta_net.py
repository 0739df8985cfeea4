"""DeltaNetState: the convolution and the gated delta rule of one layer, over a state per sequence.

Keeps of each slot a matrix per value head, and what the convolution still has to see. A row that
begins finds zeros, whatever the slot's last sequence left: nothing is cleared when a row ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention.cached import StateLayer
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight
from atom.sizing.states import DeltaShape


class DeltaNetState(StateLayer):
    """Gated delta net (arXiv 2412.06464) between its projections."""

    _states: torch.Tensor
    _tails: torch.Tensor

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
        self._states, self._tails = tensors

    def release(self) -> None:
        self._states, self._tails = torch.empty(0), torch.empty(0)
        self._running, self._saved = (), ()

    def forward(
        self,
        qkv: torch.Tensor,
        gates: tuple[torch.Tensor, torch.Tensor],
        conv: torch.Tensor,
        weight: DeltaWeight,
    ) -> torch.Tensor:
        """Compute qkv [T, C] and gates b, a [T, Hv] → [T, Hv, Dv]; conv [C, width]."""
        step = self._step
        mixed = self._ops.short_convolution(qkv, conv, self._tails, step)
        tokens = DeltaTokens(mixed, *gates)
        return self._ops.gated_delta_rule(tokens, self.shape, weight, self._states, step)
