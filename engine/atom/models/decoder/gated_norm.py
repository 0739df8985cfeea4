"""RMSNorm by groups of values that are gated first (Mamba-2); a group may span ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.linear import Build
from atom.model_ops.placement import Placement


class GatedGroupNorm(nn.Module):
    """Norms values · silu(gate), each of `groups` groups of `size` values by itself; ranks have a
    part of the values each."""

    def __init__(self, size: int, groups: int, eps: float, build: Build) -> None:
        super().__init__()
        self._size, self._groups, self._eps = size, groups, eps
        self._own, self._group = build.ranks.of(size), build.group
        own = self._own[1] - self._own[0]
        self.weight = nn.Parameter(torch.empty(own), requires_grad=False)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the weight."""
        yield Placement(f"{name}.weight", (self._size,), (self._own,), self.weight.data)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Compute x, gate [T, own] → [T, own]."""
        wide = x.float() * F.silu(gate.float())
        each = self._size // self._groups
        if each <= wide.shape[1]:
            by_group = wide.unflatten(1, (-1, each))
            mean = by_group.square().mean(-1, keepdim=True)
            unit = (by_group * torch.rsqrt(mean + self._eps)).flatten(1)
        else:  # a rank has a part of one group, and other ranks have the rest
            squares = wide.new_zeros(len(wide), self._groups)
            number = self._own[0] // each
            squares[:, number] = wide.square().sum(-1)
            mean = self._group.reduce(squares)[:, number, None] / each
            unit = wide * torch.rsqrt(mean + self._eps)
        return self.weight * unit.to(x.dtype)
