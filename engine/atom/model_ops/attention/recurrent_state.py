"""RecurrentState: the state of each slot in a layer, in the form that its shape describes.

It keeps a matrix per value head, if there are keys, and the inputs that the convolution still
needs. A row that begins reads zeros, whatever state the slot's last sequence left, so the end of a
row clears nothing. If rows carry drafts, the state only takes in accepted tokens (state_runs.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention.cached import StateLayer
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear_attention import (
    ConvWeight,
    DeltaNetWeight,
    DeltaSlots,
    DeltaTokens,
    DeltaWeight,
    SsdTokens,
    SsdWeight,
)
from atom.sizing.states import ConvShape, DeltaShape, SsdShape, StateShape
from atom.utils.forward_context import AttentionMetaData


class RecurrentState(StateLayer):
    """A convolution over a row's tokens, and a recurrence over its result."""

    _states: torch.Tensor
    _tails: torch.Tensor

    def __init__(self, shape: StateShape, ops: Ops) -> None:
        super().__init__(ops)
        self.shape = shape

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a matrix [Dk, Dv] for each value head, and of the convolution's
        tail."""
        shape = self.shape
        tails = (shape.conv_channels, shape.conv_width - 1)
        if not shape.key_dim:
            return (tails,)
        return ((shape.value_heads, shape.key_dim, shape.value_dim), tails)

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        *matrices, self._tails = tensors
        self._states = matrices[0] if matrices else torch.empty(0)

    def release(self) -> None:
        self._states, self._tails = torch.empty(0), torch.empty(0)
        self._running, self._saved, self._drafts = (), (), ()

    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.shape.input_shapes

    def _entered(self, *inputs: torch.Tensor) -> tuple[AttentionMetaData, tuple[torch.Tensor, ...]]:
        """Return the rows that go through the state, and the inputs [n, ..] of their tokens: of the
        step's [T, ..], preceded by those of accepted drafts. Store the inputs of the step's
        drafts."""
        runs = self._step.state_runs
        if runs is None:
            return self._step, inputs
        entered = []
        for own, kept in zip(inputs, self._drafts, strict=True):
            held = kept[runs.slots].flatten(0, 1).to(own.dtype)
            entered.append(torch.cat((own, held))[runs.tokens])
            kept[runs.slots] = own[runs.drafts].float()
        return runs.step, tuple(entered)

    def _left(self, found: torch.Tensor) -> torch.Tensor:
        """Select the results of the step's own tokens from those of all computed tokens [n, ..]."""
        runs = self._step.state_runs
        return found if runs is None else found[runs.own]


class ConvState(RecurrentState):
    """A convolution alone."""

    def __init__(self, shape: ConvShape, ops: Ops) -> None:
        super().__init__(shape, ops)

    def forward(self, x: torch.Tensor, conv: ConvWeight) -> torch.Tensor:
        """Compute x [T, C] → [T, C]."""
        step, (x,) = self._entered(x)
        return self._left(self._ops.short_convolution(x, conv, self._tails, step))


class DeltaNetState(RecurrentState):
    """Gated delta net (arXiv 2412.06464) between its projections."""

    def __init__(self, shape: DeltaShape, ops: Ops) -> None:
        super().__init__(shape, ops)
        self._delta = shape

    def forward(self, tokens: DeltaTokens, z: torch.Tensor, weight: DeltaNetWeight) -> torch.Tensor:
        """Compute a gated delta net from the convolution's inputs and z [T, Hv·Dv] → [T, Hv·Dv]."""
        kept = DeltaSlots(self._delta, self._states, self._tails)
        step, inputs = self._entered(tokens.qkv, tokens.b, tokens.a)
        runs = self._step.state_runs
        if runs is not None:  # the answers of accepted drafts are not needed
            z = z[runs.tokens.clamp(max=len(z) - 1)]
        net = self._ops.gated_delta_net(DeltaTokens(*inputs), z, weight, kept, step)
        return self._left(net)


class KimiDeltaState(RecurrentState):
    """Kimi Delta Attention (arXiv 2510.26692) between its projections."""

    def __init__(self, shape: DeltaShape, ops: Ops) -> None:
        super().__init__(shape, ops)
        self._delta = shape

    def forward(
        self,
        qkv: torch.Tensor,
        gates: tuple[torch.Tensor, torch.Tensor],
        conv: ConvWeight,
        weight: DeltaWeight,
    ) -> torch.Tensor:
        """Compute qkv [T, C] and gates b, a [T, Hv] → [T, Hv, Dv]."""
        step, (qkv, b, a) = self._entered(qkv, *gates)
        mixed = self._ops.short_convolution(qkv, conv, self._tails, step)
        tokens = DeltaTokens(mixed, b, a)
        return self._left(
            self._ops.gated_delta_rule(tokens, self._delta, weight, self._states, step)
        )


class SsdState(RecurrentState):
    """Mamba-2's state space duality (arXiv 2405.21060) between its projections."""

    def __init__(self, shape: SsdShape, ops: Ops) -> None:
        super().__init__(shape, ops)
        self._ssd = shape

    def forward(
        self, qkv: torch.Tensor, steps: torch.Tensor, conv: ConvWeight, weight: SsdWeight
    ) -> torch.Tensor:
        """Compute qkv [T, C] and steps [T, Hv] → [T, Hv, Dv]."""
        step, (qkv, steps) = self._entered(qkv, steps)
        tokens = SsdTokens(self._ops.short_convolution(qkv, conv, self._tails, step), steps)
        return self._left(self._ops.state_space_dual(tokens, self._ssd, weight, self._states, step))
