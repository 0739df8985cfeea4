"""Attention: grouped-query attention over the paged KV cache, of all tokens or of a window.

Says what its cache looks like (`cache_layout`), holds it once the runner has allocated it (`bind`),
and takes the step's metadata of its group of layers from the forward context. Knows neither
scheduling nor how blocks were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout
from atom.model_ops.backends.interface import Ops
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import AttentionShape, LayerCache
from atom.utils.forward_context import get_forward_context


class Attention(nn.Module):
    """norms: of queries and of keys, per head, if there are."""

    _cache: LayerCache

    def __init__(
        self,
        shape: AttentionShape,
        rotary: RotaryEmbedding,
        *,
        norms: tuple[RMSNorm, RMSNorm] | None,
        ops: Ops,
    ) -> None:
        super().__init__()
        self.shape = shape
        self._ops = ops
        # Kept out of the module tree: parameters and tables belong to who names them.
        self._rotary = (rotary,)
        self._norms = norms or (None, None)
        self._group = 0
        self.release()

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """K and V of each token, by KV head."""
        block = BlockTensor((block_size, self.shape.num_kv_heads, self.shape.head_dim), dtype)
        return CacheLayout((block, block))

    def bind(self, tensors: Sequence[torch.Tensor], group: int) -> None:
        """Use these tensors, [blocks, *shape] of the layout each, and the step's metadata of
        `group`."""
        k, v = tensors
        self._cache, self._group = LayerCache(k, v), group

    def release(self) -> None:
        """Hold no cache until `bind` is called again."""
        self._cache = LayerCache(torch.empty(0), torch.empty(0))

    def forward(self, qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """qkv [T, (Hq + 2·Hkv)·D], positions [T] → [T, Hq·D]."""
        q_norm, k_norm = (norm and norm.norm for norm in self._norms)
        rotary = self._rotary[0](positions, q_norm, k_norm)
        step = get_forward_context().attention[self._group]
        return self._ops.attention(qkv, self.shape, rotary, self._cache, step)
