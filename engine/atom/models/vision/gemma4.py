"""Gemma 4's encoder (Gemma team, 2026): learned positions of rows and of columns, heads whose
halves rotate by column and by row, norms around attention and MLP. Squares of patches are averaged.

pixels [patches, patch · patch · channels] from 0 to 1, row by row; one output per averaged square.
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
    RootNorm,
    Rotation,
    Runs,
    activation,
    attended,
    by_grid,
    empty,
    equal_runs,
    frequencies_of,
    places_of,
    repeated,
    rotation,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.gemma4 import Gemma4VisionFacts


class _Matrix(nn.Module):
    """A matrix that may bound its inputs and outputs. order: the checkpoint's element at each place
    of a head."""

    def __init__(
        self, out: int, size: int, facts: Gemma4VisionFacts, order: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.linear = Dense(out, size, bias=False, order=order)
        self._clips = facts.clips
        if facts.clips:
            self.input_min, self.input_max = empty(), empty()
            self.output_min, self.output_max = empty(), empty()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._clips:
            return cast(torch.Tensor, self.linear(x))
        bounded = self.linear(torch.clamp(x, self.input_min, self.input_max))
        return torch.clamp(bounded, self.output_min, self.output_max)


class _Attention(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts, ops: Ops) -> None:
        super().__init__()
        size, head = facts.hidden_size, facts.keys.size
        self._eps, self._ops, self._head = facts.eps, ops, head
        # Each half of a checkpoint's head rotates by itself: its quarters, with those of the other.
        first, second, third, fourth = torch.arange(head, device="cpu").chunk(4)
        order = torch.cat((first, third, second, fourth))
        self.q_proj = _Matrix(facts.num_heads * head, size, facts, order)
        self.k_proj = _Matrix(facts.keys.count * head, size, facts, order)
        self.v_proj = _Matrix(facts.keys.count * head, size, facts)
        self.o_proj = _Matrix(size, facts.num_heads * head, facts)
        self.q_norm, self.k_norm = (RootNorm(head, facts.eps, order) for _ in range(2))

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        q, k, v = (
            each(x).unflatten(1, (-1, self._head))
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        self._ops.rotate_heads(q, *by)
        self._ops.rotate_heads(k, *by)
        v = F.rms_norm(v, (self._head,), eps=self._eps)
        return cast(torch.Tensor, self.o_proj(attended((q, k, v), runs, scale=1.0)))


class _Mlp(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts) -> None:
        super().__init__()
        size, inner = facts.hidden_size, facts.intermediate_size
        self.gate_proj, self.up_proj = _Matrix(inner, size, facts), _Matrix(inner, size, facts)
        self.down_proj = _Matrix(size, inner, facts)
        self._activation = activation(facts.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(
            torch.Tensor, self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        )


class _Layer(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts, ops: Ops) -> None:
        super().__init__()
        size, eps = facts.hidden_size, facts.eps
        self.input_layernorm, self.post_attention_layernorm = (
            RootNorm(size, eps),
            RootNorm(size, eps),
        )
        self.self_attn = _Attention(facts, ops)
        self.pre_feedforward_layernorm = RootNorm(size, eps)
        self.post_feedforward_layernorm = RootNorm(size, eps)
        self.mlp = _Mlp(facts)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), by, runs)
        x = x + self.post_attention_layernorm(attended)
        inner = self.mlp(self.pre_feedforward_layernorm(x))
        return cast(torch.Tensor, x + self.post_feedforward_layernorm(inner))


class _Encoder(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts, ops: Ops) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(facts, ops) for _ in range(facts.num_layers))


class _PatchEmbedder(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts) -> None:
        super().__init__()
        self.input_proj = Dense(facts.hidden_size, facts.patches.numbers, bias=False)
        self.position_embedding_table = empty(2, facts.places.learned, facts.hidden_size)


class _Tower(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts, ops: Ops) -> None:
        super().__init__()
        self.patch_embedder = _PatchEmbedder(facts)
        self.encoder = _Encoder(facts, ops)
        if facts.standardizes:
            self.std_bias, self.std_scale = empty(facts.hidden_size), empty(facts.hidden_size)


class _Embedder(nn.Module):
    def __init__(self, facts: Gemma4VisionFacts) -> None:
        super().__init__()
        self.embedding_projection = Dense(facts.output_size, facts.hidden_size, bias=False)


class Gemma4VisionEncoder(ImageEncoder):
    unused = ("audio_tower.", "embed_audio.")

    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, Gemma4VisionFacts)
        self._facts = spec.facts
        self.vision_tower = _Tower(spec.facts, ops)
        self.embed_vision = _Embedder(spec.facts)

    @property
    def pixel_type(self) -> torch.dtype:
        return torch.float32

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        facts, tower, kept = self._facts, self.vision_tower, self.outputs.dtype
        runs = equal_runs(grids)
        centred = torch.cat([(2 * (each.float() - 0.5)).to(kept) for each in pixels])
        x = tower.patch_embedder.input_proj(centred)
        places = [(places_of(grid, x.device), count) for grid, count in runs]
        table = tower.patch_embedder.position_embedding_table
        x = x + torch.cat(
            [
                (table[0][columns] + table[1][rows]).repeat(count, 1)
                for (rows, columns), count in places
            ]
        )
        by = repeated([(self._rotation(*each), count) for each, count in places])
        pictures = [(count, grid[1] * grid[2]) for grid, count in runs]
        for layer in tower.encoder.layers:
            x = layer(x, by, pictures)
        averaged = torch.cat([self._averaged(*each) for each in by_grid(x, runs)])
        scaled = averaged.float() * facts.hidden_size**0.5
        if facts.standardizes:
            scaled = (scaled - tower.std_bias.float()) * tower.std_scale.float()
        normed = F.rms_norm(scaled.to(kept), (facts.hidden_size,), eps=facts.eps)
        return cast(torch.Tensor, self.embed_vision.embedding_projection(normed))

    def _averaged(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Average the patches of each square, in float32."""
        pool = self._facts.patches.merge
        squares = x.view(-1, grid[1] // pool, pool, grid[2] // pool, pool, x.shape[1])
        return squares.float().mean(dim=(2, 4)).to(x.dtype).flatten(0, 2)

    def _rotation(self, rows: torch.Tensor, columns: torch.Tensor) -> Rotation:
        facts = self._facts
        frequencies = frequencies_of(facts.places.theta, facts.keys.size // 2, rows.device)
        return rotation(columns, rows, (frequencies, frequencies))
