"""HeldBlocks: the blocks that decode legs reference before the scheduler does.

Counts the blocks of every request that waits or has joined, and frees those of a request that has
joined as soon as it is admitted, which gives it references of its own. Used by AwaitedPages, and by
KVTransfer, which knows when requests are admitted.
"""

from __future__ import annotations

from collections.abc import Iterable

from atom.model_engine.block_manager import BlockManager


class HeldBlocks:
    """Hold references to blocks. num_blocks: of all requests, those that wait included."""

    def __init__(self, blocks: BlockManager) -> None:
        self._pool, self._checkpoints = blocks.pool, blocks.checkpoints
        self._groups: dict[int, list[list[int]]] = {}  # by request that has joined
        self._pinned: dict[int, int] = {}  # their checkpoints of states
        self.num_blocks = 0

    def note(self, taken: list[list[int]], block_ids: list[int]) -> None:
        """Note references of one group as soon as they are taken, so that a fault drops them."""
        taken.append(block_ids)
        self.num_blocks += len(block_ids)

    def free(self, block_ids: list[int]) -> None:
        """Drop references that were noted."""
        self.num_blocks -= len(block_ids)
        self._pool.free(block_ids)

    def join(self, request_id: int, groups: list[list[int]], pinned: int | None) -> None:
        """Keep the references of a request that joins, until it is admitted. pinned: its checkpoint
        of states."""
        self._groups[request_id] = groups
        if pinned is not None:
            self._pinned[request_id] = pinned

    @property
    def requests(self) -> tuple[int, ...]:
        """Return the requests that have joined and whose blocks are still held."""
        return tuple(self._groups)

    def admitted(self, request_ids: Iterable[int]) -> None:
        """Drop the hold on the blocks of requests that have their own references now, or that
        ended."""
        for number in request_ids:
            pinned = self._pinned.pop(number, None)
            if pinned is not None and self._checkpoints is not None:
                self._checkpoints.unpin(pinned)
            for block_ids in self._groups.pop(number, ()):
                self.free(block_ids)
