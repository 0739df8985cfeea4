"""RowBlocks: the KV blocks of running rows, from their first allocation until they are all freed.

Computes how many blocks a row needs and when, which of them are computed and so shareable, and how
many stay free for running rows. Scheduler decides which row gets a slot or has to make room. Works
between the row table (lengths), the sequences (block tables) and BlockManager (the pool).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, Slots
from atom.model_engine.block_manager import BlockManager, BlockTables, PrefixMatch
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.window_blocks import WindowBlocks
from atom.model_engine.sequence import Sequence
from atom.model_engine.sequence_images import SequenceImages

# Blocks kept free when admitting beside running sequences, as a share of the pool: each of them
# will soon need one more, and admitting into the last block would only cause a preemption.
_WATERMARK = 0.01


class RowBlocks:
    """Allocate the KV blocks that rows' tokens are written to. lookahead: tokens behind the newest
    one that every row has blocks for (drafts); windows: of the groups whose layers see a window;
    None if all see everything."""

    def __init__(self, blocks: BlockManager, rows: RowTable, *, lookahead: int) -> None:
        self._blocks = blocks
        self._rows = rows
        self.lookahead = lookahead
        self._watermark_blocks = spare = int(_WATERMARK * blocks.pool.num_blocks)
        columns = blocks.blocks_for(rows.token_ids.shape[1])
        self._tables: list[BlockTables] = [()] * len(rows.room)  # by slot
        self._table_starts = [columns * number for number in range(len(blocks.groups))]
        self.windows: WindowBlocks | None = None
        if any(group.window is not None for group in blocks.groups):
            self.windows = WindowBlocks(blocks, rows, lookahead=lookahead, spare_blocks=spare)

    # ---- a row's first blocks and its last -----------------------------------------------------

    def match(self, sequence: Sequence, *, others_run: bool) -> PrefixMatch | None:
        """Return the cached prefix of a sequence if all its blocks can be allocated now; otherwise
        None."""
        if self._blocks.num_free_blocks == 0:
            return None
        tokens = sequence.named(sequence.cacheable_token_ids, 0, self._blocks.block_size)
        match = self._blocks.match_prefix(tokens, sequence.cache_salt, sequence.lora)
        spare = self._watermark_blocks if others_run else 0
        if self.windows is not None:
            spare += self.windows.promised_blocks
        fits = self._blocks.can_allocate(
            self._num_tokens(sequence), match, lookahead=self.lookahead, spare_blocks=spare
        )
        return match if fits else None

    def allocate(self, sequence: Sequence, match: PrefixMatch) -> int:
        """Block tables for a sequence that has its slot, beginning with the cached blocks that
        `match` found; how many of its tokens these spare."""
        rows, slot, size = self._rows, sequence.slot, self._blocks.block_size
        num_tokens = self._num_tokens(sequence)
        sequence.block_tables = self._tables[slot] = self._blocks.allocate(num_tokens, match)
        sequence.chain_hash = match.last_hash
        sequence.num_published = match.num_blocks
        cached = match.num_blocks * size
        rows.num_computed[slot] = cached
        rows.next_full[slot] = cached + size
        rows.room[slot] = self._blocks.blocks_for(num_tokens) * size
        if self.windows is None:
            sequence.first_blocks = [0] * len(sequence.block_tables)
        else:
            groups = zip(self._blocks.groups, match.block_ids, strict=True)
            sequence.first_blocks = [
                0 if group.window is None else match.num_blocks - len(ids) for group, ids in groups
            ]
            self.windows.enter(sequence)
        return cached

    def free(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence that leaves its slot."""
        self._blocks.free(sequence.block_tables, sequence.first_blocks)
        sequence.block_tables, sequence.first_blocks = (), []
        self._tables[sequence.slot] = ()
        if self.windows is not None:
            self.windows.leave(sequence.slot)

    def num_missing(self, sequence: Sequence) -> int:
        """Count the blocks that are short for a sequence of which nothing is cached; 0 or less if
        there are enough."""
        promised = 0 if self.windows is None else self.windows.promised_blocks
        needed = self._blocks.num_needed(self._num_tokens(sequence), lookahead=self.lookahead)
        return needed + promised - self._blocks.num_free_blocks

    def num_held_alone(self, sequence: Sequence) -> int:
        """Count the blocks that `free` would make free: those of a running sequence that no other
        holds."""
        tables = zip(sequence.block_tables, sequence.first_blocks, strict=True)
        return sum(self._blocks.pool.count_held_once(table[first:]) for table, first in tables)

    def _num_tokens(self, sequence: Sequence) -> int:
        return min(sequence.num_tokens + self.lookahead, sequence.max_total_tokens)

    # ---- one more block ------------------------------------------------------------------------

    def full(self, slots: Slots) -> Slots:
        """Find the slots whose next token, or a draft behind it, has no block to be written to: one
        more block may not be enough of drafts."""
        rows = self._rows
        last_written = rows.num_computed[slots]
        if self.lookahead:  # none after the row's end
            last_written = np.minimum(last_written + self.lookahead, rows.last_position[slots])
        full: Slots = slots[last_written >= rows.room[slots]]
        return full

    def can_append(self, num_rows: int) -> bool:
        """Return whether there is one more block of every group for `num_rows` rows."""
        return num_rows * len(self._blocks.groups) <= self._blocks.num_free_blocks

    def append(self, slots: Slots) -> NDArray[np.int32]:
        """Append a block of every group to each row; there must be enough. Returns [n, 3]: slot,
        column of its tables, block id."""
        self._rows.room[slots] += self._blocks.block_size
        listed, of_slot, starts = slots.tolist(), self._tables, self._table_starts
        columns: list[int] = []
        block_ids: list[int] = []
        for group, start in enumerate(starts):
            tables = [of_slot[slot][group] for slot in listed]
            columns += [start + len(table) for table in tables] if start else map(len, tables)
            block_ids += self._blocks.append_each(tables)
        # Three lists of numbers are an array sooner than a list of threes.
        return np.array((listed * len(starts), columns, block_ids), dtype=np.int32).T

    # ---- shareable -----------------------------------------------------------------------------

    def publish(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], context_lens: NDArray[np.int32]
    ) -> None:
        """Share the blocks that a computed batch filled, of living rows (`alive`)."""
        rows, size = self._rows, self._blocks.block_size
        grew = alive & (context_lens >= rows.next_full[batch.slots])
        if not np.count_nonzero(grew):
            return
        publish, token_ids, next_full = self._blocks.publish, rows.token_ids, rows.next_full
        slots, lengths = batch.slots[grew].tolist(), context_lens[grew].tolist()
        for slot, length in zip(slots, lengths, strict=True):
            sequence, full = rows.sequence_in(slot), length // size
            first = sequence.num_published
            tokens = token_ids[slot, first * size : full * size]
            if sequence.images is not None:
                tokens = self._named(sequence.images, tokens, first * size)
            sequence.chain_hash = publish(
                self._tables[slot], tokens, first, sequence.chain_hash, sequence.lora
            )
            sequence.num_published = full
            next_full[slot] = (full + 1) * size

    def _named(
        self, images: SequenceImages, tokens: NDArray[np.int32], first: int
    ) -> NDArray[np.int32]:
        """Return the names of full blocks with images, and describe these to readers of events."""
        size = self._blocks.block_size
        named = images.named(tokens, first, size)
        if named is not tokens and self._blocks.tells:
            keys = images.extra_keys(first, len(tokens) // size, size)
            self._blocks.describe_images(named, tokens, keys)
        return named
