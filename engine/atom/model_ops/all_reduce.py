"""Operations of a tensor-parallel model: the norm sums the products that ranks divide by inputs.

Each rank's product with its part of a matrix's inputs is a share of the sum for the residual. The
share awaits an all-reduce (Pending.ALL_REDUCE), done together with the norm that follows: the only
place in a layer where ranks wait for each other. A group may sum and norm with one kernel. A model
on one device uses the backend's operations unchanged.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch

from atom.collectives.group import Group
from atom.model_ops.activations import Gating
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, NormWeight, Pending, Stream


def with_all_reduce(ops: Ops, group: Group) -> Ops:
    """Wrap a backend's operations for a rank of `group`."""
    if group.size == 1:
        return ops
    sums = _AllReduceOps(ops, group)
    changed = {name: getattr(sums, name) for name in _CHANGED}
    shared = SimpleNamespace(**{**vars(ops), **changed})
    shared.norm_experts = ComposedOps(cast(Ops, shared)).norm_experts
    return cast(Ops, shared)


_CHANGED = ("add", "add_experts", "norm", "norm_linear", "norm_gated_linear")


class _AllReduceOps:
    """See `Ops` for each operation."""

    def __init__(self, ops: Ops, group: Group) -> None:
        self._ops = ops
        self._group = group

    def add(self, stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
        if self._group.takes_parts(stream.residual):
            return _share(stream, self._ops.linear_parts(x, w))
        return _share(stream, self._ops.linear(x, w))

    def add_experts(
        self,
        stream: Stream,
        x: torch.Tensor,
        w: ExpertsWeight,
        routed: Routed,
        shared: torch.Tensor | None,
    ) -> Stream:
        result = self._ops.experts(x, w, routed)
        return _share(stream, result if shared is None else result + shared)

    def norm(self, stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
        return self._by_group(stream, norm) or self._ops.norm(self._summed(stream), norm)

    def norm_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight
    ) -> tuple[torch.Tensor, Stream]:
        if done := self._by_group(stream, norm):
            return self._ops.linear(done[0], w), done[1]
        return self._ops.norm_linear(self._summed(stream), norm, w)

    def norm_gated_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
    ) -> tuple[torch.Tensor, Stream]:
        if done := self._by_group(stream, norm):
            return self._ops.gated_linear(done[0], w, activation), done[1]
        return self._ops.norm_gated_linear(self._summed(stream), norm, w, activation)

    def _by_group(self, stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream] | None:
        """Sum and norm a stream with a kernel of the group; None if the group has none for this
        stream."""
        if stream.pending_is is not Pending.ALL_REDUCE:
            return None
        assert stream.pending is not None
        done = self._group.add_and_norm(stream.pending, stream.residual, norm.weight, norm.eps)
        return None if done is None else (done[0], Stream(done[1]))

    def _summed(self, stream: Stream) -> Stream:
        if stream.pending_is is not Pending.ALL_REDUCE:
            return stream
        assert stream.pending is not None
        return Stream(stream.residual, self._group.reduce(stream.pending), Pending.WHOLE)


def _share(stream: Stream, x: torch.Tensor) -> Stream:
    assert stream.is_settled, "one sum at a time: a norm settles the stream first"
    return Stream(stream.residual, x, Pending.ALL_REDUCE)
