"""Norms, and a layer's lazy view of one: the norm of a stream, computed when it is used.

A norm that feeds a single product is one operation with it; one that feeds several (experts, a
compressed query and a key) is computed once. With `Normed`, a block need not know which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from atom.model_ops.activations import Gating
from atom.model_ops.backends.interface import Ops
from atom.model_ops.placement import Placement
from atom.model_ops.values import LinearWeight, MoEWeight, NormWeight, Stream


class Normed:
    """The norm of a stream, not computed yet. `stream`: settled, once it has been used."""

    def __init__(self, ops: Ops, stream: Stream, norm: NormWeight) -> None:
        self._ops = ops
        self._stream = stream
        self._norm = norm
        self._used = False

    @property
    def stream(self) -> Stream:
        assert self._used, "use the norm first: it is what settles the stream"
        return self._stream

    def tensor(self) -> torch.Tensor:  # [T, H]
        normed, self._stream = self._ops.norm(self._stream, self._norm)
        self._used = True
        return normed

    def linear(self, w: LinearWeight) -> torch.Tensor:  # [T, out]
        product, self._stream = self._ops.norm_linear(self._stream, self._norm, w)
        self._used = True
        return product

    def gated_linear(self, w: LinearWeight, activation: Gating) -> torch.Tensor:  # [T, I]
        gated, self._stream = self._ops.norm_gated_linear(self._stream, self._norm, w, activation)
        self._used = True
        return gated

    def experts(self, w: MoEWeight) -> Stream:
        """Return the stream with the experts' results for the norm added."""
        return self._ops.norm_experts(self._stream, self._norm, w)


class RMSNorm(nn.Module):
    """RMSNorm over a layer's hidden states. unit_offset: the checkpoint holds the weight minus 1
    (Gemma). order: of the checkpoint's elements here. is_unit: the checkpoint holds no weight,
    which is 1."""

    def __init__(
        self,
        dim: int,
        eps: float,
        *,
        ops: Ops,
        unit_offset: bool = False,
        order: torch.Tensor | None = None,
        is_unit: bool = False,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._unit_offset = unit_offset
        self._order = order
        self._is_unit = is_unit
        # 1 + a small number would lose the small one's digits in a narrow dtype.
        dtype = torch.float32 if unit_offset else None
        self.weight: torch.Tensor
        weight = torch.empty(dim, dtype=dtype)
        if is_unit:
            self.register_buffer("weight", weight, persistent=False)
        else:
            self.weight = nn.Parameter(weight, requires_grad=False)
        self.norm = NormWeight(self.weight.data, eps)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the parameter."""
        dim = len(self.weight)
        if not self._is_unit:
            yield Placement(f"{name}.weight", (dim,), ((0, dim),), self.weight.data, self._order)

    def finish(self) -> None:
        """Complete the weight, once it is loaded."""
        if self._unit_offset:
            self.weight.data += 1.0
        if self._is_unit:
            self.weight.data.fill_(1.0)
        self.norm = NormWeight(self.weight.data, self.norm.eps)

    def forward(self, stream: Stream) -> Normed:
        return Normed(self._ops, stream, self.norm)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Norm x [.., dim], which is no stream."""
        return self._ops.rms_norm(x, self.norm)


class LayerNorm(nn.Module):
    """The mean taken away, with a bias: of few small vectors, and so of no backend. order: see
    RMSNorm."""

    def __init__(self, dim: int, eps: float, order: torch.Tensor | None = None) -> None:
        super().__init__()
        self._eps, self._order = eps, order
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(dim), requires_grad=False)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's sources of the parameters."""
        for kind, parameter in (("weight", self.weight), ("bias", self.bias)):
            yield replace(Placement.whole(f"{name}.{kind}", parameter.data), order=self._order)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Norm x [.., dim]."""
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self._eps)
