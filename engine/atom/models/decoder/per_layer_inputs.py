"""PerLayerInputs: an input per token and layer (Gemma 4's per-layer embeddings)."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.embed_head import VocabParallelEmbedding
from atom.model_ops.linear import Build, Linear
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.spec import NormSpec, PerLayerInputsSpec
from atom.sizing.projection import Projection, Split


class PerLayerInputs(nn.Module):
    """Combine each token's looked-up embeddings with projections of its ordinary embedding."""

    def __init__(
        self, spec: PerLayerInputsSpec, hidden_size: int, norm: NormSpec, build: Build
    ) -> None:
        super().__init__()
        width, self.image_id = spec.layers * spec.size, spec.image_id
        self.embed_tokens = VocabParallelEmbedding(
            spec.vocab_size, width, build, scale=spec.size**0.5
        )
        matrix = Projection(name="projection", rows=width, columns=hidden_size, split=Split.NOTHING)
        self.projection = Linear((matrix,), build)
        self.norm = build_norm(spec.size, norm, build)
        self._size, self._scale = spec.size, hidden_size**-0.5

    def forward(self, ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Compute the inputs [T, layers, D] of tokens ids [T] that are embedded as [T, H]."""
        projected = self.projection(embedded) * self._scale
        normed = self.norm.of(projected.view(-1, self._size)).view_as(projected)
        joined = (normed + self.embed_tokens(ids)) * 2.0**-0.5
        return joined.unflatten(1, (-1, self._size))
