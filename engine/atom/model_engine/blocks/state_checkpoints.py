"""StateCheckpoints: the copies of states that are free, in progress, or complete at a block's end.

A checkpoint is found by the last block of its prefix, and so verified with that block. It is
dropped when the block is evicted, or if it is the least recently used one when another checkpoint
needs its place. Knows only ids; no hashes, sequences or tensors. Called by BlockManager.
"""

from __future__ import annotations

from collections import OrderedDict


class StateCheckpoints:
    """Hands out places of checkpoints. interval_blocks: between two of them in a sequence."""

    def __init__(self, count: int, interval_blocks: int) -> None:
        self.interval_blocks = interval_blocks
        self._free = list(range(count - 1, -1, -1))
        self._of_block: OrderedDict[int, int] = OrderedDict()  # the least lately used first

    def take(self) -> int | None:
        """Return a place for a new checkpoint; None if all places are being written."""
        if self._free:
            return self._free.pop()
        if not self._of_block:
            return None
        return self._of_block.popitem(last=False)[1]

    def give_back(self, checkpoint: int) -> None:
        """Free a place that was taken and is not kept."""
        self._free.append(checkpoint)

    def keep(self, block_id: int, checkpoint: int) -> None:
        """Register a checkpoint under the block that ends its prefix; free a duplicate."""
        if block_id in self._of_block:
            self.give_back(checkpoint)
        else:
            self._of_block[block_id] = checkpoint

    def place_of(self, block_id: int) -> int | None:
        """Return the checkpoint at a block's end, or None."""
        return self._of_block.get(block_id)

    def last_of(self, block_ids: list[int]) -> int:
        """Return how many of a prefix's blocks are before its last checkpoint."""
        every = self.interval_blocks
        for end in range(len(block_ids) // every * every, 0, -every):
            if block_ids[end - 1] in self._of_block:
                return end
        return 0

    def use(self, block_id: int) -> int:
        """Return the checkpoint at a block's end, from which a sequence continues, as the newest
        used."""
        self._of_block.move_to_end(block_id)
        return self._of_block[block_id]

    def evicted(self, block_ids: list[int]) -> None:
        """Free the checkpoints of evicted blocks."""
        for block_id in block_ids:
            checkpoint = self._of_block.pop(block_id, None)
            if checkpoint is not None:
                self._free.append(checkpoint)

    def clear(self) -> None:
        """Forget all that are some block's."""
        self._free += self._of_block.values()
        self._of_block.clear()
