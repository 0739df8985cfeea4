"""Gemma 3's encoder: SigLIP (Zhai et al. 2023) with learned positions of a square. Patches are
averaged, then projected.

pixels [squares, channels, side, side], of whole patches; one output per averaged square of patches,
row by row, square after square.
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
    JoinedDense,
    LayerNorm,
    OffsetNorm,
    PlainMlp,
    Runs,
    Table,
    attended,
    empty,
    patches_of,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.gemma3 import Gemma3VisionFacts


class _Attention(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        size, self._heads = facts.hidden_size, facts.num_heads
        self.qkv_proj = JoinedDense(size, dict.fromkeys(("q_proj", "k_proj", "v_proj"), size))
        self.out_proj = Dense(size, size)

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        heads = self.qkv_proj(x).unflatten(1, (3, self._heads, -1)).unbind(1)
        return cast(torch.Tensor, self.out_proj(attended(heads, runs)))


class _Layer(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(facts.hidden_size, facts.eps)
        self.self_attn = _Attention(facts)
        self.layer_norm2 = LayerNorm(facts.hidden_size, facts.eps)
        self.mlp = PlainMlp(facts.hidden_size, facts.intermediate_size, facts.activation)

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        x = x + self.self_attn(self.layer_norm1(x), runs)
        return cast(torch.Tensor, x + self.mlp(self.layer_norm2(x)))


class _Embeddings(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        patches, size = facts.patches, facts.hidden_size
        self.patch_embedding = Dense(size, patches.channels, patches.size, patches.size)
        self.position_embedding = Table(facts.side**2, size)


class _Encoder(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(facts) for _ in range(facts.num_layers))


class _Tower(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        self.embeddings = _Embeddings(facts)
        self.encoder = _Encoder(facts)
        self.post_layernorm = LayerNorm(facts.hidden_size, facts.eps)


class _Projector(nn.Module):
    def __init__(self, facts: Gemma3VisionFacts) -> None:
        super().__init__()
        self.mm_input_projection_weight = empty(facts.hidden_size, facts.output_size)
        self.mm_soft_emb_norm = OffsetNorm(facts.hidden_size, facts.eps)
        self._side, self._pool = facts.side, facts.patches.merge

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Average and project the patches [squares · patches, size] of squares."""
        squares = x.view(-1, self._side, self._side, x.shape[1]).permute(0, 3, 1, 2)
        averaged = F.avg_pool2d(squares, self._pool).flatten(2).transpose(1, 2).flatten(0, 1)
        normed = self.mm_soft_emb_norm(averaged)
        return cast(torch.Tensor, normed @ self.mm_input_projection_weight)


class Gemma3VisionEncoder(ImageEncoder):
    unused = ("vision_tower.head.",)

    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, Gemma3VisionFacts)
        self._facts = spec.facts
        self.vision_tower = _Tower(spec.facts)
        self.multi_modal_projector = _Projector(spec.facts)

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        tower, side = self.vision_tower, self._facts.side
        squares = sum(grid[0] for grid in grids)
        cut = [patches_of(each.to(self.outputs.dtype), self._facts.patches.size) for each in pixels]
        x = tower.embeddings.patch_embedding(torch.cat(cut))  # [squares, patches, size]
        x = (x + tower.embeddings.position_embedding.weight).flatten(0, 1)
        for layer in tower.encoder.layers:
            x = layer(x, [(squares, side**2)])
        projected: torch.Tensor = self.multi_modal_projector(tower.post_layernorm(x))
        return projected
