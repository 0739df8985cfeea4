"""WindowBlocks: blocks of the groups whose layers see a window, allocated and freed as it moves.

A row gets them chunk by chunk and frees the blocks that no later token sees, so a long prompt never
holds more than its window and the chunk being computed. Chunks are cut to the free blocks; the
blocks of the window itself are promised to a row from its admission on. Only decodes may take
promised blocks, so a prompt always progresses if there are no decodes.

A block is freed after the step that filled it has been updated (only then is it shareable), if no
step still to be scheduled sees it. Steps in flight may still see it: the block's next row writes to
it in a later step. Works between the row table, the sequences' block tables and BlockManager; used
by RowBlocks if there is such a group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence

_NEVER = np.iinfo(np.int32).max
_NOTHING = np.zeros((0, 3), dtype=np.int32)


class WindowBlocks:
    def __init__(
        self, blocks: BlockManager, rows: RowTable, *, lookahead: int, spare_blocks: int
    ) -> None:
        """lookahead: tokens behind the newest one that a row has blocks for (drafts); spare_blocks:
        that chunks leave free."""
        self._blocks = blocks
        self._rows = rows
        self._lookahead = lookahead
        self._spare_blocks = spare_blocks
        self._windows = [
            (number, group, group.window)
            for number, group in enumerate(blocks.groups)
            if group.window is not None
        ]
        num_slots, max_model_len = rows.token_ids.shape
        self._table_columns = blocks.blocks_for(max_model_len)
        self._promised = np.zeros(num_slots, dtype=np.int32)
        # At how many computed tokens the row's next block is out of a window.
        self._next_left = np.full(num_slots, _NEVER, dtype=np.int32)

    @property
    def promised_blocks(self) -> int:
        """Free blocks that running rows will need for the rest of their prompts."""
        return int(self._promised.sum())

    def enter(self, sequence: Sequence) -> None:
        """Record the promise of a sequence that has a slot and its cached blocks."""
        self._note(sequence)

    def leave(self, slot: int) -> None:
        """Note that a slot's blocks are given back."""
        self._promised[slot] = 0
        self._next_left[slot] = _NEVER

    # ---- a chunk's blocks ----------------------------------------------------------------------

    def fitting(self, slot: int, count: int) -> int:
        """Return for how many of the next `count` tokens that the row entered with there are
        blocks."""
        sequence = self._rows.sequence_in(slot)
        computed, given = int(self._rows.num_computed[slot]), int(self._rows.num_given[slot])
        known = len(sequence.block_tables[self._windows[0][0]])  # as many in each
        most = (known + self._appendable(slot)) * self._blocks.block_size
        end = min(computed + count, most)
        if end == given and self._num_tokens(sequence) > most:
            end -= 1  # the last one has to wait until there is room for drafts, too
        return max(0, end - computed)

    def append_chunk(self, slot: int, count: int) -> NDArray[np.int32]:
        """Append blocks for the next `count` tokens that the row entered with, for which there are
        blocks (`fitting`). Returns the blocks: [n, 3] of slot, column of its tables, block id."""
        sequence = self._rows.sequence_in(slot)
        end = int(self._rows.num_computed[slot]) + count
        if end == int(self._rows.num_given[slot]):
            end = self._num_tokens(sequence)
        known = len(sequence.block_tables[self._windows[0][0]])
        new = self._blocks.blocks_for(end) - known
        appends = self._append(sequence, new) if new > 0 else _NOTHING
        self._note(sequence)
        return appends

    def _appendable(self, slot: int) -> int:
        """Count the blocks that each group could get: those promised to the row, and unpromised
        ones."""
        free = self._blocks.num_free_blocks
        unpromised = max(0, free - self.promised_blocks - self._spare_blocks)
        return min(free, int(self._promised[slot]) + unpromised) // len(self._windows)

    def _append(self, sequence: Sequence, count: int) -> NDArray[np.int32]:
        appends: list[tuple[int, int, int]] = []
        for number, _, _ in self._windows:
            table = sequence.block_tables[number]
            block_ids = self._blocks.pool.allocate(count)
            first = number * self._table_columns + len(table)
            appends += [(sequence.slot, first + i, block) for i, block in enumerate(block_ids)]
            table += block_ids
        return np.array(appends, dtype=np.int32)

    # ---- blocks that left the window -----------------------------------------------------------

    def free_left(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], context_lens: NDArray[np.int32]
    ) -> bool:
        """Free the blocks that the living rows (`alive`) of a computed batch no longer see. Returns
        whether these are more than decodes free, which take as many again."""
        slots = batch.slots
        # Of rows with drafts in flight it is not certain how far they get.
        computed = context_lens if self._lookahead else self._rows.num_computed[slots]
        left = alive & (computed >= self._next_left[slots])
        if not np.count_nonzero(left):
            return False
        most = 0
        columns = (slots[left].tolist(), computed[left].tolist(), context_lens[left].tolist())
        for slot, certain, length in zip(*columns, strict=True):
            most = max(most, self._free_row(slot, certain, length))
        return most > 1

    def _free_row(self, slot: int, computed: int, length: int) -> int:
        """Free the blocks behind a row's windows, and return the most that it freed of a group.
        computed: tokens that no step still to be scheduled computes; length: of the row's steps
        that were taken in."""
        sequence, size, most = self._rows.sequence_in(slot), self._blocks.block_size, 0
        for number, _, window in self._windows:
            first = sequence.first_blocks[number]
            end = min(computed - window + 1, length) // size
            if end > first:
                self._blocks.free_left(number, first, sequence.block_tables[number][first:end])
                sequence.first_blocks[number] = end
                most = max(most, end - first)
        self._note(sequence)
        return most

    # ---- books ---------------------------------------------------------------------------------

    def _note(self, sequence: Sequence) -> None:
        """Record the blocks that the row is promised, and the length at which its next block
        leaves."""
        slot, size, wanted = sequence.slot, self._blocks.block_size, self._num_tokens(sequence)
        promised, left = 0, _NEVER
        for number, group, window in self._windows:
            first, known = sequence.first_blocks[number], len(sequence.block_tables[number])
            if known < self._blocks.blocks_for(wanted):
                held = known - first
                promised += max(0, group.blocks(wanted, size, self._lookahead) - held)
            left = min(left, (first + 1) * size + window - 1)
        self._promised[slot] = promised
        self._next_left[slot] = left

    def _num_tokens(self, sequence: Sequence) -> int:
        """Count the tokens that the row has blocks for when the last of those it entered with is
        computed."""
        given = int(self._rows.num_given[sequence.slot])
        return min(given + self._lookahead, sequence.max_total_tokens)
