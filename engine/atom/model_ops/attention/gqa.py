"""Attention: grouped-query attention over the paged KV cache, of all tokens or of a window.

It caches keys and values of each token, by KV head. It knows neither scheduling nor the allocation
of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout, present
from atom.model_ops.attention.cached import CachedAttention
from atom.model_ops.backends.interface import Ops
from atom.model_ops.index_values import IndexCache, SpanIndexShape, SpanTokens
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import AttentionShape, LayerCache, Rotary

# Keys and values of a step, unrotated, for layers of the group without their own.
_SHARED = "shared keys and values"


class Attention(CachedAttention):
    """Grouped-query attention of one layer. norms: of queries and of keys, per head, if there are;
    norms_rotated: of heads that are rotated already. shape: with the layer's own sinks, if it has
    any; index: of an indexer that selects the spans to attend to, whose keys are cached, too."""

    _cache: LayerCache
    _index_cache: IndexCache

    def __init__(
        self,
        shape: AttentionShape,
        rotary: RotaryEmbedding,
        *,
        norms: tuple[RMSNorm, RMSNorm] | None,
        ops: Ops,
        norms_rotated: bool = False,
        index: SpanIndexShape | None = None,
    ) -> None:
        super().__init__(ops)
        self.shape = shape
        self.index = index
        # Kept out of the module tree: parameters and tables belong to who names them.
        self._rotary = (rotary,)
        self._norms: tuple[RMSNorm | None, RMSNorm | None] = norms or (None, None)
        self._norms_rotated = norms_rotated
        self._target: tuple[Attention, ...] = ()
        self._sharing: list[Attention] = []

    def share(self, target: Attention) -> None:
        """Attend to the keys and values of `target`, which runs earlier in every step. This layer
        gets the keys and values of `target` once more, and uses its cache."""
        self._target, self._norms = (target,), (self._norms[0], target._norms[1])
        target._sharing.append(self)

    def bind(self, tensors: Sequence[torch.Tensor], group: int) -> None:
        """Bind the tensors here, and in the layers that share this layer's keys and values."""
        super().bind(tensors, group)
        for layer in self._sharing:
            layer.bind(tensors, group)

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Return the layout of K and V of each token, by KV head; in fp8 with their scales."""
        heads = (block_size, self.shape.num_kv_heads)
        block = BlockTensor((*heads, self.shape.head_dim), dtype)
        is_scaled = dtype in FP8_DTYPES
        scales = (BlockTensor(heads, torch.float32),) * 2 if is_scaled else ()
        if self.index is None:
            return CacheLayout((block, block, *scales))
        keys = BlockTensor((block_size, self.index.dim), dtype)
        scale = (BlockTensor((block_size,), torch.float32),) if is_scaled else ()
        return CacheLayout((block, block, *scales, keys, *scale))

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        own = 4 if tensors[0].dtype in FP8_DTYPES else 2
        self._cache = LayerCache(*tensors[:own])
        if self.index is not None:
            self._index_cache = IndexCache(*tensors[own:])

    def cached_tensors(self) -> tuple[torch.Tensor, ...]:
        own = present(self._cache)
        return own if self.index is None else own + present(self._index_cache)

    @property
    def tensors_by_head(self) -> int:
        return len(present(self._cache))

    def release(self) -> None:
        self._cache = LayerCache(torch.empty(0), torch.empty(0))
        self._index_cache = IndexCache(torch.empty(0))

    def forward(
        self, qkv: torch.Tensor, positions: torch.Tensor, asking: SpanTokens | None = None
    ) -> torch.Tensor:
        """Attend: qkv [T, (Hq + 2·Hkv)·D], of a layer that shares another's keys queries [T, Hq·D]
        alone, positions [T] → [T, Hq·D]; asking: the indexer's projections. Overwrites qkv."""
        width = self.shape.num_heads * self.shape.head_dim
        if self._target:
            qkv = torch.cat((qkv, self._step.per_step[_SHARED]), dim=1)
        elif self._sharing:
            self._step.per_step[_SHARED] = qkv[:, width:].clone()
        queries = qkv[:, :width]
        self._rotary[0].scale_queries(queries, positions)
        q_norm, k_norm = (norm and norm.norm for norm in self._norms)
        if self._norms_rotated:
            self._rotate_and_norm(qkv, positions)
            rotary = self._rotary[0].still(positions)
        else:
            rotary = self._rotary[0](positions, q_norm, k_norm)
        if asking is not None and self.index is not None:
            return self._attend_to_spans(qkv, rotary, asking, self.index)
        return self._ops.attention(qkv, self.shape, rotary, self._cache, self._step)

    def _attend_to_spans(
        self, qkv: torch.Tensor, rotary: Rotary, asking: SpanTokens, index: SpanIndexShape
    ) -> torch.Tensor:
        """Attend to the spans that the indexer selects, or to all tokens if it selects all."""
        ops, cache, step = self._ops, self._cache, self._step
        q = ops.qk_norm_rope_store(qkv, self.shape, rotary, cache, step.slot_mapping)
        spans = ops.select_spans(asking, index, rotary, self._index_cache, step)
        if spans is None:
            return ops.paged_attention(q, self.shape, cache, step)
        return ops.span_attention(q, self.shape, cache, (spans, index), step)

    def _rotate_and_norm(self, qkv: torch.Tensor, positions: torch.Tensor) -> None:
        """Rotate queries and keys, then norm them, in place: kernels do it the other way round."""
        heads = qkv.unflatten(1, (-1, self.shape.head_dim))
        middle = self.shape.num_heads
        for part, norm in zip(
            (heads[:, :middle], heads[:, middle : middle + self.shape.num_kv_heads]),
            self._norms,
            strict=True,
        ):
            assert norm is not None
            turned = self._rotary[0].turned(part, positions)
            part.copy_(norm.of(turned.flatten(0, 1)).view(part.shape))
