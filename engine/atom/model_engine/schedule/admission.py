"""Admission: whether the first waiting sequence has room, looked at again only once it may have.

A sequence that found no room is not matched against the cache again until blocks are freed or
become shareable. Scheduler tells of rows; holders of blocks that are no rows show by the number of
free blocks. Used by Scheduler only.
"""

from __future__ import annotations

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.schedule.lora_slots import LoraSlots
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.sequence import Sequence


class Admission:
    def __init__(self, blocks: BlockManager, row_blocks: RowBlocks, loras: LoraSlots) -> None:
        self._pool = blocks.pool
        self._row_blocks = row_blocks
        self._loras = loras
        self._blocked: Sequence | None = None  # first in the queue, without room
        self._free_when_blocked = 0  # blocks

    @property
    def is_blocked(self) -> bool:
        """Return whether the first of the queue found no room."""
        return self._blocked is not None

    def reopen(self) -> None:
        """Look again at the first of the queue: there may be room for it now."""
        self._blocked = None

    def match(self, sequence: Sequence, *, others_run: bool) -> PrefixMatch | None:
        """Return the cached prefix of the first waiting sequence if it can be admitted now; None if
        blocks are short or no slot is free for its adapter. others_run: keep blocks free for the
        running rows."""
        num_free = self._pool.num_free
        if sequence is self._blocked and num_free <= self._free_when_blocked:
            return None
        self._free_when_blocked = num_free
        match = None
        if sequence.lora is None or self._loras.has_room(sequence.lora):
            match = self._row_blocks.match(sequence, others_run=others_run)
        if match is None:
            self._blocked = sequence
        return match
