"""RMSNorm over all heads of a token's queries, and over all of its keys (OLMo 3, MiniMax-M2).

Ranks that divide the heads add up their sums of squares, both in one collective; a KV head that
several ranks hold counts once. If sums have a fixed tree (tree_sums.py), one rank adds up the parts
that several ranks would have, and ranks that share a head each add a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.linear import Build
from atom.model_ops.placement import Placement
from atom.model_ops.tree_sums import sum_by_halves, tree_sum
from atom.model_ops.values import NormWeight
from atom.sizing.projection import Projection
from atom.sizing.reproducibility import LEAVES


class WholeHeadsNorm(nn.Module):
    """The weight of one of the two norms, for the rank's heads. projection: of the heads; order: of
    a head's elements (rotary_embedding.py)."""

    def __init__(
        self, projection: Projection, eps: float, build: Build, order: torch.Tensor | None
    ) -> None:
        super().__init__()
        self._region, self._all = build.ranks.region(projection).rows, projection.rows
        self._order = order
        own = self._region[1] - self._region[0]
        self.weight = nn.Parameter(torch.empty(own), requires_grad=False)
        self.norm = NormWeight(self.weight.data, eps)
        # Ranks that hold the same head: each counts a part of it.
        self._holders = build.ranks.size * own / projection.rows
        self._leaves, self._counted = 0, slice(None)
        if build.in_tree and projection.rows % (LEAVES * build.ranks.size) == 0:
            each = projection.rows // build.ranks.size
            first = build.ranks.rank * each % own
            self._leaves = max(1, LEAVES // build.ranks.size)
            self._counted = slice(first, first + each)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the weight."""
        shape, region = (self._all,), (self._region,)
        yield Placement(f"{name}.weight", shape, region, self.weight.data, self._order)

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum of squares [T] of all heads; x [T, own heads · D]."""
        if not self._leaves:
            return x.float().square().sum(-1) / self._holders
        leaves = x[:, self._counted].float().square().unflatten(1, (self._leaves, -1))
        return tree_sum(sum_by_halves(leaves).unbind(1))

    def scaled(self, x: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        """Norm x [T, own heads · D] by the sum of squares [T] over all heads."""
        unit = x.float() * torch.rsqrt(squares / self._all + self.norm.eps)[:, None]
        return unit.to(x.dtype) * self.weight


def norm_queries_and_keys(
    qkv: torch.Tensor, norms: tuple[WholeHeadsNorm, WholeHeadsNorm], build: Build
) -> None:
    """Norm queries and keys in place; qkv [T, (Hq + 2·Hkv)·D] of this rank's heads."""
    query, key = norms
    middle = len(query.weight)
    parts = qkv[:, :middle], qkv[:, middle : middle + len(key.weight)]
    if build.group.size == 1 and not build.in_tree:
        for part, norm in zip(parts, norms, strict=True):
            part.copy_(build.ops.rms_norm(part.contiguous(), norm.norm))
        return
    own = [norm.squares(part) for part, norm in zip(parts, norms, strict=True)]
    totals = build.group.reduce(torch.stack(own))
    for part, norm, total in zip(parts, norms, totals, strict=True):
        part.copy_(norm.scaled(part, total))
