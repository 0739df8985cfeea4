"""Pixtral's encoder (Agrawal et al. 2024) with the projector of Mistral Small 3.1: norms before
attention and MLP, gated MLPs, rotated rows and columns; squares of patches become tokens.

pixels [channels, height, width], of whole patches; one output per merged square, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops
from atom.models.vision.encoder import ImageEncoder, VisionSpec
from atom.models.vision.parts import (
    Dense,
    GatedMlp,
    JoinedDense,
    RootNorm,
    Rotation,
    Runs,
    activation,
    by_grid,
    equal_runs,
    frequencies_of,
    patches_of,
    places_of,
    repeated,
    rotated_attention,
    rotation,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.pixtral import PixtralFacts

_EPS = 1e-5


class _Attention(nn.Module):
    def __init__(self, facts: PixtralFacts, ops: Ops) -> None:
        super().__init__()
        size, self._heads, self._ops = facts.hidden_size, facts.num_heads, ops
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), size)
        self.qkv_proj = JoinedDense(size, parts, bias=False)
        self.o_proj = Dense(size, size, bias=False)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        results = rotated_attention(self.qkv_proj(x), self._heads, by, runs, self._ops)
        return cast(torch.Tensor, self.o_proj(results))


class _Layer(nn.Module):
    def __init__(self, facts: PixtralFacts, ops: Ops) -> None:
        super().__init__()
        self.attention_norm = RootNorm(facts.hidden_size, _EPS)
        self.attention = _Attention(facts, ops)
        self.ffn_norm = RootNorm(facts.hidden_size, _EPS)
        self.feed_forward = GatedMlp(
            facts.hidden_size, facts.intermediate_size, facts.activation, ops
        )

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), by, runs)
        return cast(torch.Tensor, x + self.feed_forward(self.ffn_norm(x)))


class _Transformer(nn.Module):
    def __init__(self, facts: PixtralFacts, ops: Ops) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(facts, ops) for _ in range(facts.num_layers))


class _Tower(nn.Module):
    def __init__(self, facts: PixtralFacts, ops: Ops) -> None:
        super().__init__()
        patch = facts.patches.size
        self.patch_conv = Dense(facts.hidden_size, facts.patches.channels, patch, patch, bias=False)
        self.ln_pre = RootNorm(facts.hidden_size, _EPS)
        self.transformer = _Transformer(facts, ops)


class _Merger(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        size = facts.hidden_size
        self.merging_layer = Dense(size, size * facts.patches.merge**2, bias=False)


class _Projector(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        out = facts.output_size
        self.norm = RootNorm(facts.hidden_size, facts.projector_eps)
        self.patch_merger = _Merger(facts)
        self.linear_1 = Dense(out, facts.hidden_size, bias=facts.projector_bias)
        self.linear_2 = Dense(out, out, bias=facts.projector_bias)
        self._activation = activation(facts.projector_activation)
        self._merge = facts.patches.merge

    def forward(self, x: torch.Tensor, runs: Sequence[tuple[Grid, int]]) -> torch.Tensor:
        """Project patches [T, size] of pictures to their tokens. runs: the pictures' grids, each
        with how many have it."""
        squares = [self._squares(*each) for each in by_grid(self.norm(x), runs)]
        merged = self.patch_merger.merging_layer(torch.cat(squares))
        return cast(torch.Tensor, self.linear_2(self._activation(self.linear_1(merged))))

    def _squares(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Arrange patches of pictures of one grid as the checkpoint's matrix has its inputs: each
        element of all patches of a square."""
        _, height, width = grid
        merge, size = self._merge, x.shape[1]
        x = x.view(-1, height // merge, merge, width // merge, merge, size)
        return x.permute(0, 1, 3, 5, 2, 4).reshape(-1, size * merge**2)


class PixtralEncoder(ImageEncoder):
    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, PixtralFacts)
        self._facts = spec.facts
        self.vision_tower = _Tower(spec.facts, ops)
        self.multi_modal_projector = _Projector(spec.facts)

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        facts, tower = self._facts, self.vision_tower
        runs = equal_runs(grids)
        patches = [
            patches_of(each.to(self.outputs.dtype).unsqueeze(0), facts.patches.size)[0]
            for each in pixels
        ]
        x = tower.ln_pre(tower.patch_conv(torch.cat(patches)))
        by = repeated([(self._rotation(grid, x.device), count) for grid, count in runs])
        pictures = [(count, grid[1] * grid[2]) for grid, count in runs]
        for layer in tower.transformer.layers[: facts.feature_layer]:
            x = layer(x, by, pictures)
        projected: torch.Tensor = self.multi_modal_projector(x, runs)
        return projected

    def _rotation(self, grid: Grid, device: torch.device) -> Rotation:
        frequencies = frequencies_of(self._facts.theta, self._facts.head_dim, device)
        return rotation(*places_of(grid, device), (frequencies[0::2], frequencies[1::2]))
