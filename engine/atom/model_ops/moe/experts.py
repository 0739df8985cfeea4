"""Experts: the MLPs of a layer of which each token uses a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from atom.model_ops.activations import Gating
from atom.model_ops.expert_parallel.dispatch import ExpertDispatch, own_share
from atom.model_ops.expert_parallel.expert_map import ExpertMap
from atom.model_ops.linear import Build
from atom.model_ops.moe.stacked_linear import StackedLinear
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, Stream
from atom.sizing.layers import Stacking
from atom.sizing.projection import Projection


class Experts(nn.Module):
    """A layer's routed experts. matrices: gate, up and down, or the last two, in as many copies
    as there are experts; stacking: see StackedLinear; weighs_inputs: see Routing."""

    def __init__(
        self,
        matrices: Sequence[Projection],
        activation: Gating,
        build: Build,
        *,
        stacking: Stacking = Stacking.APART,
        weighs_inputs: bool = False,
    ) -> None:
        super().__init__()
        self._weighs_inputs = weighs_inputs
        self._ops = build.ops
        self._activation = activation
        self._share = build.experts
        *inner, down = matrices
        gating = activation if activation.has_gate else None
        self.gate_up_proj = StackedLinear(inner, build, gating=gating, stacking=stacking)
        self.down_proj = StackedLinear([down], build, stacking=stacking)

    @property
    def w(self) -> ExpertsWeight:
        """Return the operations' view of the weights."""
        gate_up, down = self.gate_up_proj.w, self.down_proj.w
        return ExpertsWeight(gate_up, down, self._activation, self._weighs_inputs)

    def forward(self, x: torch.Tensor, routed: Routed) -> torch.Tensor:  # [T, H] → [T, H]
        """Compute each token's experts of x, as far as this rank has a share of them."""
        return self._ops.experts(x, self.w, self._own(routed))

    def add(
        self, stream: Stream, x: torch.Tensor, routed: Routed, shared: torch.Tensor | None
    ) -> Stream:
        """Return the stream plus the results of each token's experts for x [T, H], and plus shared
        [T, H]."""
        return self._ops.add_experts(stream, x, self.w, self._own(routed), shared)

    def _own(self, routed: Routed) -> Routed:
        """Take this rank's part, of ranks with the same tokens; a norm adds up their shares."""
        if self._share is None:
            return routed
        return own_share(routed, self._share.rank * self.w.count)


class ExpertParallelExperts(Experts):
    """Experts of ranks with their own tokens: each token is sent to the ranks with its experts."""

    def __init__(
        self,
        matrices: Sequence[Projection],
        activation: Gating,
        build: Build,
        *,
        stacking: Stacking = Stacking.APART,
        weighs_inputs: bool = False,
    ) -> None:
        super().__init__(
            matrices, activation, build, stacking=stacking, weighs_inputs=weighs_inputs
        )
        assert build.exchange is not None
        assert build.experts is not None
        self._exchange: ExpertDispatch = build.exchange
        self._dtype = torch.get_default_dtype()
        # Where experts are while they may move; None where slots are in the order of experts.
        self._places: ExpertMap | None = None
        if build.experts.may_move:
            device = self.w.down.data.device
            self._places = ExpertMap(matrices[0].copies, build.experts.redundant, device)

    @property
    def places(self) -> ExpertMap:
        """Return the map of the experts' places, if they may move."""
        assert self._places is not None
        return self._places

    def stacks(self) -> Iterator[torch.Tensor]:
        """Yield every tensor of the weights, [slots, ..]."""
        for stack in (self.gate_up_proj, self.down_proj):
            yield from stack.tensors()

    def add(
        self, stream: Stream, x: torch.Tensor, routed: Routed, shared: torch.Tensor | None
    ) -> Stream:
        result = self(x, routed)
        return stream.plus(result if shared is None else result + shared)

    def forward(self, x: torch.Tensor, routed: Routed) -> torch.Tensor:
        """Compute each token's experts of x, on whichever ranks the experts are."""
        if self._places is not None:
            routed = self._places.slots_of(routed)
        return self._of(x, routed)

    def run_dummy_batch(self, top_k: int) -> None:
        """Compute for other ranks' tokens, in a step for which this rank has none."""
        device, hidden = self.w.down.data.device, self.w.down.outputs
        none = torch.empty((0, top_k), device=device)
        x = torch.empty((0, hidden), dtype=self._dtype, device=device)
        self._of(x, Routed(none.int(), none.float()))

    def _of(self, x: torch.Tensor, routed: Routed) -> torch.Tensor:  # [T, H] → [T, H]
        arrived = self._exchange.dispatch(x, routed, self.w.count)
        result = arrived.x
        if len(result):
            result = self._ops.experts(result, self.w, arrived.routed)
        return self._exchange.combine(arrived, result)
