"""CompressedAttention: attention to a window of tokens, and to entries that each sum up several
tokens (DeepSeek V4).

There are two caches. One has, for the newest tokens, their keys and their contributions to entries;
the other has the entries of the whole sequence, in each block those that are complete in it. The
tokens of an incomplete entry are in the window, so a sequence can continue from its blocks alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention.cache_layout import BlockTensor, CacheLayout
from atom.model_ops.attention.cached import CachedAttention
from atom.model_ops.backends.interface import Ops
from atom.model_ops.compressed_attention import (
    CompressedCache,
    CompressedLayer,
    CompressedShape,
    CompressedTokens,
)
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.sizing.attention.compressed import Compressed
from atom.utils.forward_context import AttentionMetaData


class CompressedAttention(CachedAttention):
    """Attention of one layer to a window, and to `entries`, if there are any. net: its sizes."""

    _window: torch.Tensor

    def __init__(
        self, layer: CompressedLayer, net: Compressed, rotary: RotaryEmbedding, ops: Ops
    ) -> None:
        super().__init__(ops)
        self.layer, self._net = layer, net
        self._rotary = (rotary,)  # out of the module tree
        self.entries = EntryCache(layer.shape, net, ops) if net.rate else None

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Return the layout of each token's key and its contributions to entries."""
        width = self._net.window_elements(self.layer.shape.head_dim)
        return CacheLayout((BlockTensor((block_size, width), dtype),))

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        (self._window,) = tensors

    def cached_tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._window,)

    def release(self) -> None:
        self._window = torch.empty(0)

    def forward(self, tokens: CompressedTokens, positions: torch.Tensor) -> torch.Tensor:
        """Attend with the projections' results, positions [T] → [T, Hq·D]."""
        rotary = self._rotary[0](positions, None, None)
        cache, steps = CompressedCache(self._window), (self._step, self._step)
        if self.entries is not None:
            cache, steps = self.entries.joined(cache), (self._step, self.entries.step)
        return self._ops.compressed_attention(tokens, self.layer, rotary, cache, steps)


class EntryCache(CachedAttention):
    """The cache of one layer's entries, which its attention fills and reads."""

    _entries: torch.Tensor
    _index: torch.Tensor | None

    def __init__(self, shape: CompressedShape, net: Compressed, ops: Ops) -> None:
        super().__init__(ops)
        self._shape, self._net = shape, net

    @property
    def step(self) -> AttentionMetaData:
        """Return the metadata of this step's tokens in the blocks of entries."""
        return self._step

    def joined(self, cache: CompressedCache) -> CompressedCache:
        """Return a layer's cache of a window with its entries."""
        return CompressedCache(cache.window, self._entries, self._index)

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Keep each entry that is complete in a block, and its key in the indexer."""
        sizes = (self._shape.head_dim, self._shape.index_dim)
        count = self._net.entries_of_block(block_size)
        return CacheLayout(tuple(BlockTensor((count, size), dtype) for size in sizes if size))

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        self._entries, *others = tensors
        self._index = others[0] if others else None

    def cached_tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._entries,) if self._index is None else (self._entries, self._index)

    def release(self) -> None:
        self._entries, self._index = torch.empty(0), None
