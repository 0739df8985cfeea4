"""ProtectedPool: a pool that evicts blocks which were used at least twice after all others.

Half of its blocks may be such ones (EvictionOrder). Everything else is BlockPool's. Called by
BlockManager for `--kv-offload-policy protected`.
"""

from __future__ import annotations

from collections.abc import Sequence

from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.blocks.eviction_order import EvictionOrder


class ProtectedPool(BlockPool):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._order = EvictionOrder(num_blocks, "protected")

    def share(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self._order.use(block_id)
        super().share(block_ids)

    def hold(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                self._order.remove(block_id)
        super().hold(block_ids)

    def forget(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            if self._hashes[block_id] is not None:
                self._order.forget(block_id)
        super().forget(block_ids)

    def reset_cache(self) -> list[int]:
        self._order.clear()
        return super().reset_cache()

    def _give_back(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self._order.add(block_id)

    def _evict(self, count: int) -> list[int]:
        evicted = [self._order.pop() for _ in range(count)]
        gone = []
        for block_id in evicted:
            content_hash = self._hashes[block_id]
            assert content_hash is not None
            del self._by_hash[content_hash]
            self._hashes[block_id] = None
            gone.append(content_hash)
        self._note_evicted(evicted, gone)
        return evicted

    def _cached_blocks(self) -> set[int]:
        return set(self._order)
