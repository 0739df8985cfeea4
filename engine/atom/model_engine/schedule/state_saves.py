"""StateSaves: when a row's state is copied to a checkpoint, and from which one a row continues.

A state is copied after the step that computes a row up to a multiple of the interval, so chunks of
prompts end there. Those of a prefill leg, which another engine continues, end at its last whole
block, too. A state becomes findable once that step has been updated and its blocks are shareable;
a row that ended meanwhile frees its checkpoint. Between the row table, BatchBuilder and
BlockManager; used by Scheduler if layers keep states and prefixes are cached.
"""

from __future__ import annotations

import numpy as np

from atom.model_engine.batch import ScheduledBatch, Slots, StateCopy
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.schedule.batch_builder import Chunk
from atom.model_engine.schedule.row_table import RowTable


class StateSaves:
    def __init__(self, checkpoints: StateCheckpoints, blocks: BlockManager, rows: RowTable) -> None:
        self._checkpoints, self._blocks, self._rows = checkpoints, blocks, rows
        self._interval = checkpoints.interval_blocks * blocks.block_size

    def cut(self, slot: int, count: int) -> int:
        """Return how much of a chunk's tokens is computed before the row's next checkpoint."""
        computed = int(self._rows.num_computed[slot])
        count = min(count, self._interval - computed % self._interval)
        end = self._leg_end(slot)
        return min(count, end - computed) if computed < end else count

    def _leg_end(self, slot: int) -> int:
        """Return the tokens of whole blocks that another engine may read of a row; 0 of one that is
        no prefill leg."""
        sequence, size = self._rows.sequence_in(slot), self._blocks.block_size
        return (sequence.num_prompt_tokens - 1) // size * size if sequence.is_prefill_leg else 0

    def _is_saved(self, slot: int, count: int) -> bool:
        """Return whether the states of a row are saved after so many more tokens of its prompt."""
        end = int(self._rows.num_computed[slot]) + count
        return end % self._interval == 0 or end == self._leg_end(slot)

    def plan(self, decodes: Slots, chunks: list[Chunk]) -> tuple[StateCopy, ...]:
        """Return which rows' states are copied behind the step that is about to be built, and
        where; called before their tokens count as computed."""
        computed, interval = self._rows.num_computed, self._interval
        ending = decodes[(computed[decodes] + 1) % interval == 0].tolist()
        ending += [slot for slot, count in chunks if self._is_saved(slot, count)]
        copies = []
        for slot in ending:
            place = self._checkpoints.take()
            if place is not None:
                copies.append(StateCopy(slot, place))
        return tuple(copies)

    def parents(self, batch: ScheduledBatch) -> list[int]:
        """Return the hash before the last block of each prefix that the batch saves; called before
        its blocks are published."""
        size, found = self._blocks.block_size, []
        for copy in batch.state_saves:
            sequence = self._rows.sequences[copy.slot]
            if sequence is None:
                found.append(0)
                continue
            first, end = sequence.num_published * size, self._end(batch, copy.slot) - size
            tokens = sequence.named(self._rows.token_ids[copy.slot, first:end], first, size)
            found.append(self._blocks.chain(tokens, sequence.chain_hash))
        return found

    def keep(self, batch: ScheduledBatch, saved: np.ndarray, parents: list[int]) -> None:
        """Make a batch's saved states findable, for living rows at the stated position; its blocks
        are published."""
        living = set(batch.slots[saved].tolist())
        size = self._blocks.block_size
        for copy, parent in zip(batch.state_saves, parents, strict=True):
            if copy.slot not in living:
                self._checkpoints.give_back(copy.checkpoint)
                continue
            end = self._end(batch, copy.slot)
            sequence = self._rows.sequence_in(copy.slot)
            tokens = self._rows.token_ids[copy.slot, end - size : end]
            tokens = sequence.named(tokens, end - size, size)
            between = end % self._interval != 0
            self._blocks.keep_checkpoint(tokens, parent, copy.checkpoint, between=between)

    def _end(self, batch: ScheduledBatch, slot: int) -> int:
        """Return the number of tokens that the states of the slot's row have taken in after the
        batch: no drafts."""
        (row,) = np.flatnonzero(batch.slots == slot)
        scheduled = 1 if row < batch.num_decodes else int(batch.num_scheduled_tokens[row])
        return int(batch.num_computed_tokens[row]) + scheduled
