"""MLAAttention: multi-head latent attention over the paged cache (arXiv 2405.04434).

It caches one entry of each token for all heads, the normed latent and the rotated key, on every
rank. The layer's matrix that makes keys and values from latents is passed to the operation, which
either up-projects latents or absorbs queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout, present
from atom.model_ops.attention.cached import CachedAttention
from atom.model_ops.backends.interface import Ops
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Linear
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.model_ops.quantised.cached_latents import ROTATED_DTYPE
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens

_SELECTED = "attention.selected_tokens"


@dataclass(frozen=True, slots=True)
class MLAParts:
    """The layer's parameters that its attention uses. norm: of the latent; up: see
    `Ops.mla_attention`."""

    rotary: RotaryEmbedding
    norm: RMSNorm
    up: Linear


class MLAAttention(CachedAttention):
    """Multi-head latent attention of one layer. index: of an indexer that selects the tokens to
    attend to, if there is one; its keys are cached with the entries. shares_index: the layer uses
    the selection of the last earlier layer with an indexer."""

    _cache: LatentCache
    _index_cache: IndexCache

    def __init__(
        self,
        shape: LatentShape,
        parts: MLAParts,
        index: IndexShape | None,
        *,
        ops: Ops,
        shares_index: bool = False,
    ) -> None:
        super().__init__(ops)
        self.shape = shape
        self.index = index
        self._shares_index = shares_index
        # A value, and so out of the module tree: parameters belong to who names them.
        self._parts = parts

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Return tensors for an entry of each token, and its indexer key; in fp8 with their
        scales."""
        tokens = (block_size,)
        if dtype not in FP8_DTYPES:
            entries = BlockTensor((*tokens, self.shape.entry_dim), dtype)
            if self.index is None:
                return CacheLayout((entries,))
            return CacheLayout((entries, BlockTensor((*tokens, self.index.dim), dtype)))
        scale = BlockTensor(tokens, torch.float32)
        latents = BlockTensor((*tokens, self.shape.kv_rank), dtype)
        rotated = BlockTensor((*tokens, self.shape.rope_dim), ROTATED_DTYPE)
        if self.index is None:
            return CacheLayout((latents, rotated, scale))
        keys = BlockTensor((*tokens, self.index.dim), dtype)
        return CacheLayout((latents, rotated, scale, keys, scale))

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        own = 3 if tensors[0].dtype in FP8_DTYPES else 1
        self._cache = LatentCache(*tensors[:own])
        if self.index is not None:
            self._index_cache = IndexCache(*tensors[own:])

    def cached_tensors(self) -> tuple[torch.Tensor, ...]:
        own = present(self._cache)
        return own if self.index is None else own + present(self._index_cache)

    def release(self) -> None:
        self._cache = LatentCache(torch.empty(0))
        self._index_cache = IndexCache(torch.empty(0))

    def forward(
        self, tokens: LatentTokens, positions: torch.Tensor, asking: IndexTokens | None = None
    ) -> torch.Tensor:
        """Attend with the projections' results, positions [T] → [T, Hq·value_dim]; asking: the
        indexer's projections."""
        parts, step = self._parts, self._step
        rotary = parts.rotary(positions, None, parts.norm.norm)
        tokens = self._ops.mla_rope_store(
            tokens, self.shape, rotary, self._cache, step.slot_mapping
        )
        selected = step.per_step[_SELECTED] if self._shares_index else None
        if asking is not None and self.index is not None:
            selected = self._ops.select_tokens(asking, self.index, rotary, self._index_cache, step)
            step.per_step[_SELECTED] = selected  # for layers that share it
        up = parts.up.w
        if selected is None:
            return self._ops.mla_attention(tokens, self.shape, up, self._cache, step)
        return self._ops.sparse_mla_attention(tokens, self.shape, up, self._cache, selected)
