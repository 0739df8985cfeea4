"""BatchBuilder: builds a ScheduledBatch from a step's rows and the changes since the last one.

It stores the changes that the runner has not received yet (rows that entered, blocks that were
appended) and drops those of a row that leaves first. Decides nothing: Scheduler decides which row
computes how much. Building a batch also advances its rows in the table, since from then on it
counts as computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import (
    NO_CONTINUATIONS,
    NO_IMAGES,
    LoraLoad,
    NewRow,
    PromptScore,
    ScheduledBatch,
    Slots,
    StateCopy,
    StepImages,
)
from atom.model_engine.row_columns import row_numbers
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence

_NO_APPENDS = np.zeros((0, 3), dtype=np.int32)

Chunk = tuple[int, int]  # slot, tokens of its prompt


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Hold the rows that decode together, step after step, with their constant arrays. given: their
    slots as the scheduler gave them; in execution order: slots, req_ids, ones (their scheduled
    tokens), all (whether they sample)."""

    given: Slots
    slots: Slots
    req_ids: NDArray[np.int64]
    ones: NDArray[np.int32]
    all: NDArray[np.bool_]

    @classmethod
    def of(cls, given: Slots, slots: Slots, rows: RowTable) -> _Decodes:
        ones = np.ones(len(slots), dtype=np.int32)
        return cls(given, slots, rows.request_ids[slots], ones, ones.astype(np.bool_))


class BatchBuilder:
    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._new_rows: list[NewRow] = []
        self._block_appends: list[NDArray[np.int32]] = []
        self._state_loads: list[StateCopy] = []
        self._lora_loads: list[LoraLoad] = []
        nobody = np.zeros(0, dtype=np.intp)
        self._decodes = _Decodes.of(nobody, nobody, rows)

    # ---- changes ------------------------------------------------------------------------------

    def enter(self, sequence: Sequence) -> None:
        """Add the sequence to the next batch's new rows. It has a slot, blocks and a seed."""
        self._new_rows.append(
            NewRow(
                token_ids=sequence.token_ids,
                block_ids=tuple(map(list, sequence.block_tables)),
                params=sequence.params,
                images=() if sequence.images is None else sequence.images.spans,
                **row_numbers(sequence),
            )
        )

    def append_blocks(self, appends: NDArray[np.int32]) -> None:
        """Record appended blocks: [n, 3] of slot, column of its block tables, block id."""
        self._block_appends.append(appends)

    def load_state(self, slot: int, checkpoint: int) -> None:
        """Let the row that entered continue from a checkpoint's states."""
        self._state_loads.append(StateCopy(slot, checkpoint))

    def load_lora(self, load: LoraLoad) -> None:
        """Let an adapter take a slot of the device, whose rows have all left."""
        self._lora_loads.append(load)

    def leave(self, slot: int) -> None:
        """Drop the slot's unsent appends and state copies: its next owner has other blocks."""
        if self._state_loads:
            self._state_loads = [copy for copy in self._state_loads if copy.slot != slot]
        if self._block_appends:
            self._block_appends = [part[part[:, 0] != slot] for part in self._block_appends]

    # ---- the batch ----------------------------------------------------------------------------

    def build(
        self,
        decodes: Slots,
        chunks: list[Chunk],
        *,
        extended: bool = False,
        saves: tuple[StateCopy, ...] = (),
        images: StepImages = NO_IMAGES,
    ) -> ScheduledBatch:
        """Build the batch of a step. decodes: not to be changed any more; the same array as before
        says the same rows. extended: some of them compute extra tokens; saves: states to copy
        behind it; images: of its chunks."""
        rows = self._rows
        if decodes is not self._decodes.given:
            self._decodes = self._next_decodes(decodes)
        steady = self._decodes
        slots, scheduled, req_ids, samples = steady.slots, steady.ones, steady.req_ids, steady.all
        if extended:
            scheduled = scheduled + rows.num_extra[slots]
        scores: tuple[PromptScore, ...] = ()
        if chunks:
            chunk_array = np.array(chunks, dtype=np.int32)
            slots = np.concatenate([slots, chunk_array[:, 0]])
            scheduled = np.concatenate([scheduled, chunk_array[:, 1]])
            req_ids = rows.request_ids[slots]
            samples = rows.num_computed[slots] + scheduled >= rows.num_tokens[slots]
            scores = self._prompt_scores(len(decodes), chunks)
        computed = rows.num_computed[slots]
        rows.num_computed[slots] = computed + scheduled
        rows.num_tokens[slots] += samples  # a token that is known by value only at update()
        if extended:
            rows.num_tokens[steady.slots] += rows.num_extra[steady.slots]
        batch = ScheduledBatch(
            new_rows=tuple(self._new_rows),
            block_appends=self._take_block_appends(),
            slots=slots,
            req_ids=req_ids,
            num_computed_tokens=computed,
            num_scheduled_tokens=scheduled,
            samples=samples,
            num_decodes=len(decodes),
            prompt_scores=scores,
            state_loads=tuple(self._state_loads),
            state_saves=saves,
            lora_loads=tuple(self._lora_loads),
            images=images,
            continuations=rows.continuations if extended else NO_CONTINUATIONS,
        )
        self._new_rows, self._state_loads, self._lora_loads = [], [], []
        return batch

    def _prompt_scores(self, first_row: int, chunks: list[Chunk]) -> tuple[PromptScore, ...]:
        """Return the prompt tokens to score in these chunks, which are the batch's rows from
        `first_row` on. Tokens scored before a preemption are not scored again."""
        scores = []
        for row, (slot, count) in enumerate(chunks, first_row):
            sequence = self._rows.sequence_in(slot)
            if sequence.num_unscored:
                first = sequence.num_scored
                computed = int(self._rows.num_computed[slot]) + count
                wanted = min(computed - first, sequence.num_unscored)
                if wanted > 0:
                    scores.append(PromptScore(row, first, wanted))
                    sequence.num_scored += wanted
        return tuple(scores)

    def _next_decodes(self, given: Slots) -> _Decodes:
        """Order the decodes, the longest first. A device then ends with short rows, and none of its
        units waits long for the last. Rows that continue together keep their order: each grows by
        one."""
        last = self._decodes
        if np.array_equal(given, last.given):
            return _Decodes.of(given, last.slots, self._rows)
        order = np.argsort(-self._rows.num_computed[given], kind="stable")
        return _Decodes.of(given, given[order], self._rows)

    def _take_block_appends(self) -> NDArray[np.int32]:
        parts, self._block_appends = self._block_appends, []
        if len(parts) > 1:
            return np.concatenate(parts)
        return parts[0] if parts else _NO_APPENDS
