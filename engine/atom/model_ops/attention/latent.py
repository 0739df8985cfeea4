"""LatentAttention: multi-head latent attention over the paged cache (arXiv 2405.04434).

Keeps one entry of each token for all heads, its normed latent and its rotated key, and so on every
rank. What makes keys and values of latents is a matrix of the layer's, handed to the
operation, which decides whether to unfold latents or to fold queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout
from atom.model_ops.attention.cached import CachedAttention
from atom.model_ops.backends.interface import Ops
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Linear
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens


@dataclass(frozen=True, slots=True)
class LatentParts:
    """What a layer's parameters do in its attention. norm: of the latent; up: see
    `Ops.paged_latent_attention`."""

    rotary: RotaryEmbedding
    norm: RMSNorm
    up: Linear


class LatentAttention(CachedAttention):
    _cache: LatentCache

    def __init__(self, shape: LatentShape, parts: LatentParts, *, ops: Ops) -> None:
        super().__init__(ops)
        self.shape = shape
        # A value, and so out of the module tree: parameters belong to who names them.
        self._parts = parts

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """One entry of each token."""
        return CacheLayout((BlockTensor((block_size, self.shape.entry_dim), dtype),))

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        (entries,) = tensors
        self._cache = LatentCache(entries)

    def release(self) -> None:
        self._cache = LatentCache(torch.empty(0))

    def forward(self, tokens: LatentTokens, positions: torch.Tensor) -> torch.Tensor:
        """What the projections gave, positions [T] → [T, Hq·value_dim]."""
        parts, step = self._parts, self._step
        rotary = parts.rotary(positions, None, parts.norm.norm)
        tokens = self._ops.latent_rope_store(
            tokens, self.shape, rotary, self._cache, step.slot_mapping
        )
        return self._ops.paged_latent_attention(tokens, self.shape, parts.up.w, self._cache, step)
