"""StateCheckpoints: the copies of states that are free, in progress, or complete at a block's end.

A checkpoint is found by the last block of its prefix, and so verified with that block. It is
dropped when the block is evicted, or if it is the least recently used one when another checkpoint
needs its place. A pinned one stays: another engine reads it, or a request waits that will use it.
Knows only ids; no hashes, sequences or tensors. Called by BlockManager.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence


class StateCheckpoints:
    """Hands out places of checkpoints. interval_blocks: between two of them in a sequence; others
    are at the ends of prompts that another engine has computed, or will continue."""

    def __init__(self, count: int, interval_blocks: int) -> None:
        self.interval_blocks = interval_blocks
        self._free = list(range(count - 1, -1, -1))
        self._of_block: OrderedDict[int, int] = OrderedDict()  # the least lately used first
        self._between: set[int] = set()  # blocks of checkpoints within an interval
        self._pins: Counter[int] = Counter()  # by checkpoint
        self._forgotten: set[int] = set()  # pinned checkpoints that are no block's any longer

    def take(self) -> int | None:
        """Return a place for a new checkpoint; None if all places are being written, or pinned."""
        if self._free:
            return self._free.pop()
        for block_id, checkpoint in self._of_block.items():
            if checkpoint not in self._pins:
                self._between.discard(block_id)
                return self._of_block.pop(block_id)
        return None

    def give_back(self, checkpoint: int) -> None:
        """Free a place that was taken and is not kept."""
        self._free.append(checkpoint)

    def keep(self, block_id: int, checkpoint: int, *, between: bool = False) -> None:
        """Register a checkpoint under the block that ends its prefix; free a duplicate. between:
        the prefix is no multiple of the interval."""
        if block_id in self._of_block:
            self.give_back(checkpoint)
            return
        self._of_block[block_id] = checkpoint
        if between:
            self._between.add(block_id)

    def pin(self, block_id: int) -> int:
        """Return the checkpoint at a block's end, whose states stay until `unpin`, even if the
        block is forgotten."""
        checkpoint = self._of_block[block_id]
        self._pins[checkpoint] += 1
        return checkpoint

    def unpin(self, checkpoint: int) -> None:
        """Let a checkpoint be dropped again."""
        self._pins[checkpoint] -= 1
        if not self._pins[checkpoint]:
            del self._pins[checkpoint]
            if checkpoint in self._forgotten:
                self._forgotten.remove(checkpoint)
                self._free.append(checkpoint)

    def place_of(self, block_id: int) -> int | None:
        """Return the checkpoint at a block's end, or None."""
        return self._of_block.get(block_id)

    def regular_place_of(self, block_id: int) -> int | None:
        """Return the checkpoint at a block's end; None too if that is within an interval."""
        return None if block_id in self._between else self._of_block.get(block_id)

    @property
    def step_blocks(self) -> int:
        """Return a number of blocks of which the prefix of every checkpoint is a multiple."""
        return 1 if self._between else self.interval_blocks

    def last_of(self, block_ids: list[int]) -> int:
        """Return how many of a prefix's blocks are before its last checkpoint."""
        every = self.step_blocks
        for end in range(len(block_ids) // every * every, 0, -every):
            if block_ids[end - 1] in self._of_block:
                return end
        return 0

    def without_windows(
        self, block_ids: Sequence[int], first: int, seen: Callable[[int], int]
    ) -> list[int]:
        """Return the blocks of a group, from index `first` of a sequence on, that no token behind a
        checkpoint sees. seen: how many of so many blocks the next token sees."""
        found = []
        for index, block_id in enumerate(block_ids, start=first):
            end = -(-(index + 1) // self.interval_blocks) * self.interval_blocks
            if index < end - seen(end):
                found.append(block_id)
        return found

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
                self._forget(checkpoint)
                self._between.discard(block_id)

    def clear(self) -> None:
        """Forget all that are some block's."""
        for checkpoint in self._of_block.values():
            self._forget(checkpoint)
        self._of_block.clear()
        self._between.clear()

    def _forget(self, checkpoint: int) -> None:
        """Free a checkpoint that is no block's, once it is not pinned."""
        if checkpoint in self._pins:
            self._forgotten.add(checkpoint)
        else:
            self._free.append(checkpoint)
