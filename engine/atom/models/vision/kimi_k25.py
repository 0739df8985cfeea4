"""Kimi-K2.5's encoder: MoonViT (Kimi Team 2025). Learned positions are resampled to an image's
grid; rows and columns rotate; squares of patches are joined and projected.

pixels [patches, channels · patch · patch], row by row; one output per square, row by row. Names and
orders are those of the published checkpoints, in which neighbouring elements of a head rotate, by
column and by row in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    activation,
    by_grid,
    empty,
    equal_runs,
    frequencies_of,
    places_of,
    repeated,
    rotated_attention,
    rotation,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.kimi_k25 import KimiVisionFacts

_EPS = 1e-5


class _Mlp(nn.Module):
    def __init__(self, facts: KimiVisionFacts) -> None:
        super().__init__()
        self.fc0 = Dense(facts.intermediate_size, facts.hidden_size)
        self.fc1 = Dense(facts.hidden_size, facts.intermediate_size)
        self._activation = activation(facts.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.fc1(self._activation(self.fc0(x))))


class _Block(nn.Module):
    def __init__(self, facts: KimiVisionFacts, ops: Ops) -> None:
        super().__init__()
        size, self._heads, self._ops = facts.hidden_size, facts.num_heads, ops
        self.norm0, self.norm1 = LayerNorm(size, _EPS), LayerNorm(size, _EPS)
        self.wqkv = Dense(3 * size, size, order=_order_of(facts))
        self.wo = Dense(size, size)
        self.mlp = _Mlp(facts)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        joined = self.wqkv(self.norm0(x))
        x = x + self.wo(rotated_attention(joined, self._heads, by, runs, self._ops))
        return cast(torch.Tensor, x + self.mlp(self.norm1(x)))


class _Encoder(nn.Module):
    def __init__(self, facts: KimiVisionFacts, ops: Ops) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(facts, ops) for _ in range(facts.num_layers))
        self.final_layernorm = LayerNorm(facts.hidden_size, _EPS)


class _Positions(nn.Module):
    """Learned positions of a grid of patches, which are resampled for any other grid."""

    def __init__(self, facts: KimiVisionFacts) -> None:
        super().__init__()
        self.weight = empty(*facts.positions, facts.hidden_size)

    def of(self, grid: Grid) -> torch.Tensor:
        """Return the positions [patches, size] of a grid."""
        table = self.weight.float().permute(2, 0, 1).unsqueeze(0)
        found = F.interpolate(table, size=grid[1:], mode="bicubic")[0]
        return found.flatten(1).transpose(0, 1).to(self.weight.dtype)


class _PatchEmbed(nn.Module):
    def __init__(self, facts: KimiVisionFacts) -> None:
        super().__init__()
        patch = facts.patches.size
        self.proj = Dense(facts.hidden_size, facts.patches.channels, patch, patch)
        self.pos_emb = _Positions(facts)


class _Tower(nn.Module):
    def __init__(self, facts: KimiVisionFacts, ops: Ops) -> None:
        super().__init__()
        self.patch_embed = _PatchEmbed(facts)
        self.encoder = _Encoder(facts, ops)


class _Projector(nn.Module):
    def __init__(self, facts: KimiVisionFacts) -> None:
        super().__init__()
        self._merge = facts.patches.merge
        merged = facts.hidden_size * self._merge**2
        self.pre_norm = LayerNorm(facts.hidden_size, facts.eps)
        self.proj = nn.ModuleDict(
            {"0": Dense(merged, merged), "2": Dense(facts.output_size, merged)}
        )

    def forward(self, x: torch.Tensor, runs: Sequence[tuple[Grid, int]]) -> torch.Tensor:
        """Project patches [T, size] of pictures to their tokens. runs: the pictures' grids, each
        with how many have it."""
        squares = torch.cat([self._squares(*each) for each in by_grid(self.pre_norm(x), runs)])
        return cast(torch.Tensor, self.proj["2"](F.gelu(self.proj["0"](squares))))

    def _squares(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        _, height, width = grid
        merge, size = self._merge, x.shape[1]
        x = x.view(-1, height // merge, merge, width // merge, merge, size)
        return x.transpose(2, 3).reshape(-1, size * merge**2)


class KimiVisionEncoder(ImageEncoder):
    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, KimiVisionFacts)
        self._facts = spec.facts
        self.vision_tower = _Tower(spec.facts, ops)
        self.mm_projector = _Projector(spec.facts)

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        tower, runs = self.vision_tower, equal_runs(grids)
        embed = tower.patch_embed
        x = embed.proj(torch.cat([each.to(self.outputs.dtype) for each in pixels]))
        x = x + torch.cat([embed.pos_emb.of(grid).repeat(count, 1) for grid, count in runs])
        by = repeated([(self._rotation(grid, x.device), count) for grid, count in runs])
        pictures = [(count, grid[1] * grid[2]) for grid, count in runs]
        for block in tower.encoder.blocks:
            x = block(x, by, pictures)
        projected: torch.Tensor = self.mm_projector(tower.encoder.final_layernorm(x), runs)
        return projected

    def _rotation(self, grid: Grid, device: torch.device) -> Rotation:
        frequencies = frequencies_of(self._facts.theta, self._facts.head_dim // 2, device)
        return rotation(*places_of(grid, device), (frequencies, frequencies))


def _order_of(facts: KimiVisionFacts) -> torch.Tensor:
    """Return the checkpoint's row at each row of queries, keys and values: of a head of the first
    two, the first elements of pairs that rotate by row, then by column, and so the second ones."""
    pairs = torch.arange(facts.head_dim // 2, device="cpu")
    by_place = 2 * torch.cat((pairs[1::2], pairs[0::2]))
    head = torch.cat((by_place, by_place + 1))
    heads = torch.arange(2 * facts.num_heads, device="cpu").unsqueeze(1) * facts.head_dim
    values = torch.arange(2 * facts.hidden_size, 3 * facts.hidden_size, device="cpu")
    return torch.cat(((heads + head).flatten(), values))
