"""Pixtral's encoder (Agrawal et al. 2024) with the projector of Mistral Small 3.1: norms before
attention and MLP, gated MLPs, rotated rows and columns; squares of patches become tokens.

pixels [channels, height, width], of whole patches; one output per merged square, row by row.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from atom.models.vision.encoder import ImageEncoder, VisionSpec
from atom.models.vision.parts import Dense, RootNorm, activation, attended, rotation
from atom.sizing.vision.pixtral import PixtralFacts

_EPS = 1e-5


class _Attention(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        size, self._heads = facts.hidden_size, facts.num_heads
        self.q_proj = Dense(size, size, bias=False)
        self.k_proj = Dense(size, size, bias=False)
        self.v_proj = Dense(size, size, bias=False)
        self.o_proj = Dense(size, size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each(x).unflatten(1, (self._heads, -1))
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        return cast(torch.Tensor, self.o_proj(attended(q, k, v, cos, sin)))


class _Mlp(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        size, inner = facts.hidden_size, facts.intermediate_size
        self.gate_proj = Dense(inner, size, bias=False)
        self.up_proj = Dense(inner, size, bias=False)
        self.down_proj = Dense(size, inner, bias=False)
        self._activation = activation(facts.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(
            torch.Tensor, self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        )


class _Layer(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        self.attention_norm = RootNorm(facts.hidden_size, _EPS)
        self.attention = _Attention(facts)
        self.ffn_norm = RootNorm(facts.hidden_size, _EPS)
        self.feed_forward = _Mlp(facts)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return cast(torch.Tensor, x + self.feed_forward(self.ffn_norm(x)))


class _Transformer(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(facts) for _ in range(facts.num_layers))


class _Tower(nn.Module):
    def __init__(self, facts: PixtralFacts) -> None:
        super().__init__()
        patch = facts.patches.size
        self.patch_conv = Dense(facts.hidden_size, facts.patches.channels, patch, patch, bias=False)
        self.ln_pre = RootNorm(facts.hidden_size, _EPS)
        self.transformer = _Transformer(facts)


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

    def forward(self, x: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Project patches [height · width, size] of one picture to its tokens."""
        _, height, width = grid
        merge, size = self._merge, x.shape[1]
        normed = self.norm(x).view(height // merge, merge, width // merge, merge, size)
        # As the checkpoint's matrix has its inputs: each element of all patches of a square.
        squares = normed.permute(0, 2, 4, 1, 3).reshape(-1, size * merge**2)
        merged = self.patch_merger.merging_layer(squares)
        return cast(torch.Tensor, self.linear_2(self._activation(self.linear_1(merged))))


class PixtralEncoder(ImageEncoder):
    def __init__(self, spec: VisionSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.facts, PixtralFacts)
        self._facts = spec.facts
        self.vision_tower = _Tower(spec.facts)
        self.multi_modal_projector = _Projector(spec.facts)

    def encode(self, pixels: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        facts, tower = self._facts, self.vision_tower
        _, height, width = grid
        patch = facts.patches.size
        patches = pixels.view(facts.patches.channels, height, patch, width, patch)
        x = tower.ln_pre(
            tower.patch_conv(patches.permute(1, 3, 0, 2, 4).reshape(height * width, -1))
        )
        cos, sin = self._rotation(height, width, x.device)
        for layer in tower.transformer.layers[: facts.feature_layer]:
            x = layer(x, cos, sin)
        projected: torch.Tensor = self.multi_modal_projector(x, grid)
        return projected

    def _rotation(
        self, height: int, width: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = self._facts.head_dim
        places = torch.arange(0, size, 2, dtype=torch.float, device=device) / size
        frequencies = 1.0 / self._facts.theta**places
        rows = torch.arange(height, device=device).repeat_interleave(width)
        columns = torch.arange(width, device=device).repeat(height)
        return rotation(rows, columns, (frequencies[0::2], frequencies[1::2]))
