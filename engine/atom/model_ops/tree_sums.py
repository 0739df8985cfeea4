"""Sums over ranks in a fixed tree: each rank gets every other's share, and adds up all shares
itself.

A library's all-reduce chooses its order by the size of the message and by the links. Here the order
is always ((0 + 1) + (2 + 3)), in float32, and the result is rounded once. Products by inputs have
leaves in the same tree (backends/batch_invariant*), of which a rank adds up its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from atom.collectives.group import Group
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream
from atom.sizing.reproducibility import LEAVES

Norm = Callable[[Stream, NormWeight], tuple[torch.Tensor, Stream]]


def leaves_of(w: LinearWeight, unit: int = 1) -> int:
    """Count the leaves that a rank's matrix has, each of whole `unit`s of inputs: one where several
    would not be equally many, or with more ranks than leaves."""
    if w.ranks is None:
        return 1
    leaves = max(1, LEAVES // w.ranks)
    return leaves if w.inputs % (leaves * unit) == 0 else 1


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Add up neighbours, then the sums of neighbours, until one is left."""
    while len(parts) > 1:
        pairs = [one + other for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[len(pairs) * 2 :]]
    return parts[0]


def sum_by_halves(x: torch.Tensor) -> torch.Tensor:
    """Add up x [.., n] → [..] by adding one half to the other: element by element, so that no
    library chooses an order by the number of rows."""
    while (width := x.shape[-1]) > 1:
        half = width // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((pairs, x[..., 2 * half :]), dim=-1)
    return x.squeeze(-1)


def join_by_tree(norm: Norm) -> Callable[[Group, torch.device, int], Group]:
    """Build `Backend.join` over a backend's norm."""
    return lambda group, _device, _row_bytes: TreeSumGroup(group, norm)


class TreeSumGroup:
    """A group that adds up by a tree what another group carries."""

    def __init__(self, group: Group, norm: Norm) -> None:
        self._group = group
        self._norm = norm
        self.rank, self.size, self.nodes = group.rank, group.size, group.nodes
        self.gather, self.enter = group.gather, group.enter
        self.barrier, self.close = group.barrier, group.close

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(1, -1)
        return self._tree(flat).to(x.dtype).view_as(x)

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = tree_sum(x.unbind()) if x.dim() == 3 else x
        total = self._tree(own).to(residual.dtype)
        normed, stream = self._norm(Stream(residual, total, Pending.WHOLE), NormWeight(weight, eps))
        return normed, stream.residual

    def takes_parts(self, residual: torch.Tensor) -> bool:
        return True

    def _tree(self, x: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' x [R, n], float32 as soon as they are added."""
        everyone = self._group.gather(x).view(x.shape[0], self.size, x.shape[1])
        return tree_sum(everyone.float().unbind(1))
