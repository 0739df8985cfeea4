"""The encoder of Qwen3-VL (technical report, 2025) and Qwen3.5: learned positions between those of
a square grid, rotated rows and columns, LayerNorms. In Qwen3-VL results of some layers go to the
decoder's first layers.

pixels [patches, channels · frames · patch · patch], the patches of a merged square one after
another; one output per square, with those for the decoder's layers beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.backends.interface import Ops
from atom.models.vision.encoder import ImageEncoder, VisionSpec
from atom.models.vision.parts import (
    Dense,
    LayerNorm,
    Rotation,
    Runs,
    Table,
    activation,
    equal_runs,
    frequencies_of,
    repeated,
    rotated_attention,
    rotation,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.qwen3_vl import QwenVisionFacts

_EPS = 1e-6


class _Attention(nn.Module):
    def __init__(self, facts: QwenVisionFacts, ops: Ops) -> None:
        super().__init__()
        size, self._heads, self._ops = facts.hidden_size, facts.num_heads, ops
        self.qkv = Dense(3 * size, size)
        self.proj = Dense(size, size)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        results = rotated_attention(self.qkv(x), self._heads, by, runs, self._ops)
        return cast(torch.Tensor, self.proj(results))


class _Mlp(nn.Module):
    def __init__(self, facts: QwenVisionFacts) -> None:
        super().__init__()
        self.linear_fc1 = Dense(facts.intermediate_size, facts.hidden_size)
        self.linear_fc2 = Dense(facts.hidden_size, facts.intermediate_size)
        self._activation = activation(facts.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.linear_fc2(self._activation(self.linear_fc1(x))))


class _Block(nn.Module):
    def __init__(self, facts: QwenVisionFacts, ops: Ops) -> None:
        super().__init__()
        self.norm1 = LayerNorm(facts.hidden_size, _EPS)
        self.attn = _Attention(facts, ops)
        self.norm2 = LayerNorm(facts.hidden_size, _EPS)
        self.mlp = _Mlp(facts)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), by, runs)
        return cast(torch.Tensor, x + self.mlp(self.norm2(x)))


class _Merger(nn.Module):
    """Project merged squares. merges_first: the norm is of a whole square."""

    def __init__(self, facts: QwenVisionFacts, *, merges_first: bool) -> None:
        super().__init__()
        self._merged, self._first = facts.hidden_size * facts.patches.merge**2, merges_first
        self.norm = LayerNorm(self._merged if merges_first else facts.hidden_size, _EPS)
        self.linear_fc1 = Dense(self._merged, self._merged)
        self.linear_fc2 = Dense(facts.output_size, self._merged)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._first:
            x = x.view(-1, self._merged)
        squares = self.norm(x).view(-1, self._merged)
        return cast(torch.Tensor, self.linear_fc2(F.gelu(self.linear_fc1(squares))))


class _PatchEmbed(nn.Module):
    def __init__(self, facts: QwenVisionFacts) -> None:
        super().__init__()
        patch = facts.patches.size
        self.proj = Dense(
            facts.hidden_size, facts.patches.channels, facts.patches.frames, patch, patch
        )


class _Visual(nn.Module):
    def __init__(self, facts: QwenVisionFacts, ops: Ops) -> None:
        super().__init__()
        self.patch_embed = _PatchEmbed(facts)
        self.pos_embed = Table(facts.positions, facts.hidden_size)
        self.blocks = nn.ModuleList(_Block(facts, ops) for _ in range(facts.num_layers))
        self.merger = _Merger(facts, merges_first=False)
        self.deepstack_merger_list = nn.ModuleList(
            _Merger(facts, merges_first=True) for _ in facts.inner_layers
        )


class QwenVisionEncoder(ImageEncoder):
    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, QwenVisionFacts)
        self._facts = spec.facts
        self.visual = _Visual(spec.facts, ops)

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        visual = self.visual
        places = [
            (grid, count, *self._places(grid, pixels[0].device))
            for grid, count in equal_runs(grids)
        ]
        x = visual.patch_embed.proj(torch.cat([each.to(self.outputs.dtype) for each in pixels]))
        x = x + torch.cat(
            [
                self._positions(rows, columns, grid).to(x.dtype).repeat(count, 1)
                for grid, count, rows, columns in places
            ]
        )
        by = repeated(
            [(self._rotation(rows, columns), count) for _, count, rows, columns in places]
        )
        runs = [(count, grid[1] * grid[2]) for grid, count, *_ in places]
        inner: list[torch.Tensor] = []
        for number, block in enumerate(visual.blocks):
            x = block(x, by, runs)
            if number in self._facts.inner_layers:
                inner.append(visual.deepstack_merger_list[len(inner)](x))
        return torch.cat((visual.merger(x), *inner), dim=1)

    def _places(self, grid: Grid, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row and column [patches] of each patch, square by square."""
        _, height, width = grid
        merge = self._facts.patches.merge
        shape = (height // merge, merge, width // merge, merge)
        rows = torch.arange(height, device=device).view(shape[0], merge, 1, 1).expand(shape)
        columns = torch.arange(width, device=device).view(1, 1, shape[2], merge).expand(shape)
        return rows.transpose(1, 2).flatten(), columns.transpose(1, 2).flatten()

    def _positions(self, rows: torch.Tensor, columns: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Interpolate the learned positions [patches, size]: the image spans the whole grid."""
        table, side = self.visual.pos_embed.weight, isqrt(self._facts.positions)
        (top, bottom, down), (left, right, across) = (
            _between(places, count, side) for places, count in ((rows, grid[1]), (columns, grid[2]))
        )
        found = torch.zeros(len(rows), table.shape[1], device=rows.device)
        for row, share in ((top, 1 - down), (bottom, down)):
            for column, part in ((left, 1 - across), (right, across)):
                found += table[row * side + column] * (share * part).unsqueeze(1)
        return found

    def _rotation(self, rows: torch.Tensor, columns: torch.Tensor) -> Rotation:
        frequencies = frequencies_of(self._facts.theta, self._facts.head_dim // 2, rows.device)
        return rotation(rows, columns, (frequencies, frequencies))


def _between(
    places: torch.Tensor, count: int, side: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the two neighbours [patches] in a grid of `side` of each of `count` places, and the
    share of the second."""
    at = places.float() * (side - 1) / max(count - 1, 1)
    first = at.floor().long().clamp(max=side - 1)
    return first, (first + 1).clamp(max=side - 1), at - first
