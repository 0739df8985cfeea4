"""RowBlocks: the KV blocks of running rows, from the first that are given until all are taken back.

It knows how many blocks a row needs and when, what of them is computed and so shareable, and how
many stay free for those that run. Who gets a slot or has to make room is Scheduler's word. Between
the row table (lengths), the sequences (block tables) and BlockManager (which blocks there are).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, Slots
from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence

# Blocks kept free when admitting beside running sequences, as a share of the pool: each of them
# will soon need one more, and admitting into the last block would only cause a preemption.
_WATERMARK = 0.01


class RowBlocks:
    def __init__(self, blocks: BlockManager, rows: RowTable, *, lookahead: int) -> None:
        """lookahead: tokens behind the newest one that every row has blocks for (drafts)."""
        self._blocks = blocks
        self._rows = rows
        self._lookahead = lookahead
        self._watermark_blocks = int(_WATERMARK * blocks.pool.num_blocks)

    # ---- a row's first blocks and its last -----------------------------------------------------

    def find(self, sequence: Sequence, *, others_run: bool) -> PrefixMatch | None:
        """What is cached of a sequence that could have all its blocks now; None when they are
        short."""
        if self._blocks.num_free_blocks == 0:
            return None
        match = self._blocks.match_prefix(sequence.cacheable_token_ids, sequence.cache_salt)
        spare = self._watermark_blocks if others_run else 0
        fits = self._blocks.can_allocate(self._num_tokens(sequence), match, spare_blocks=spare)
        return match if fits else None

    def give(self, sequence: Sequence, match: PrefixMatch) -> int:
        """A sequence that has its slot gets its block table, beginning with the cached blocks that
        `find` found; how many of its tokens these spare."""
        rows, slot, size = self._rows, sequence.slot, self._blocks.block_size
        sequence.block_table = self._blocks.allocate(self._num_tokens(sequence), match)
        sequence.chain_hash = match.last_hash
        sequence.num_published = len(match.block_ids)
        cached = sequence.num_published * size
        rows.num_computed[slot] = cached
        rows.next_full[slot] = cached + size
        rows.room[slot] = len(sequence.block_table) * size
        return cached

    def take_back(self, sequence: Sequence) -> None:
        self._blocks.free(sequence.block_table)

    def _num_tokens(self, sequence: Sequence) -> int:
        return min(sequence.num_tokens + self._lookahead, sequence.max_total_tokens)

    # ---- one more block ------------------------------------------------------------------------

    def full(self, slots: Slots) -> Slots:
        """Those whose next token has no block to be written to."""
        rows = self._rows
        last_written = rows.num_computed[slots]
        if self._lookahead:  # drafts behind the row's own token, but none behind its end
            last_written = np.minimum(last_written + self._lookahead, rows.last_position[slots])
        full: Slots = slots[last_written == rows.room[slots]]
        return full

    def append(self, slots: Slots) -> list[tuple[int, int, int]]:
        """One more block for each, of which there are enough: (slot, index in its block table,
        block id)."""
        rows = self._rows
        listed = slots.tolist()
        tables = [sequence.block_table for slot in listed if (sequence := rows.sequences[slot])]
        indices = [len(table) for table in tables]
        block_ids = self._blocks.append_each(tables)
        rows.room[slots] += self._blocks.block_size
        return list(zip(listed, indices, block_ids, strict=True))

    # ---- shareable -----------------------------------------------------------------------------

    def publish(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], context_lens: NDArray[np.int32]
    ) -> None:
        """A batch was computed: the blocks that it filled, of rows that are still there (`alive`),
        can be shared from now on."""
        rows, size = self._rows, self._blocks.block_size
        grew = alive & (context_lens >= rows.next_full[batch.slots])
        if not np.count_nonzero(grew):
            return
        for slot, length in zip(
            batch.slots[grew].tolist(), context_lens[grew].tolist(), strict=True
        ):
            sequence = rows.sequence_in(slot)
            first, full = sequence.num_published, length // size
            sequence.chain_hash = self._blocks.publish(
                sequence.block_table,
                rows.token_ids[slot, first * size : full * size],
                first,
                sequence.chain_hash,
            )
            sequence.num_published = full
            rows.next_full[slot] = (full + 1) * size
