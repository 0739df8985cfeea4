"""LayerCaches: the KV cache and the states that the layers of one runner hold.

Allocates the tensors that layers keep of sequences, and releases them. The runner may build its
model again, so it is asked for the layers at each call. Owned by ModelRunner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from atom.config import Config
from atom.model_engine.runner import kv_cache
from atom.model_ops.attention import CachedLayer
from atom.sizing.kv_layout import KvLayout


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Blocks of the KV cache, of block_size tokens each, and how many groups of layers have tables
    of them."""

    num_blocks: int
    block_size: int
    num_groups: int


@dataclass(slots=True)
class LayerCaches:
    """Allocate and release the layers' caches. layers: returns those of the model and its drafter
    that keep something of sequences; size: the blocks and checkpoints of the cache on which steps
    run."""

    config: Config
    layout: KvLayout
    place: kv_cache.Place
    layers: Callable[[], Sequence[CachedLayer]]
    size: tuple[int, int] = (0, 0)

    def shape(self, num_blocks: int) -> CacheShape:
        return CacheShape(num_blocks, self.config.cache.block_size, len(self.layout.groups))

    def allocate(self, num_blocks: int, num_checkpoints: int = 0) -> list[torch.Tensor]:
        layers, size = self.layers(), self.config.cache.block_size
        tensors = kv_cache.allocate(layers, self.layout.groups, num_blocks, size, self.place)
        counts = kv_cache.StateCounts.of(self.config.scheduler, num_checkpoints)
        return tensors + kv_cache.allocate_states(layers, counts, self.place.device)

    def release(self) -> None:
        """Free the cache that the layers hold."""
        for layer in self.layers():
            layer.release()
        if self.place.device.type != "cpu":
            torch.cuda.empty_cache()
