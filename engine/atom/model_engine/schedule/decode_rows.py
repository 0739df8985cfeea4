"""DecodeRows: the running rows that decode in the next step, each with a block to write to.

Appends blocks to rows whose blocks are full. If none is free, running sequences are preempted, in
the order that Scheduler decides, but never while a batch is outstanding, since a token that it
samples would be lost. Used by Scheduler only.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np

from atom.model_engine.batch import Slots
from atom.model_engine.schedule.batch_builder import BatchBuilder
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.schedule.row_table import RowTable


class DecodeRows:
    def __init__(
        self,
        rows: RowTable,
        row_blocks: RowBlocks,
        batches: BatchBuilder,
        held: Set[int],
        preempt: Callable[[], None],
    ) -> None:
        """held: ids of sequences that take part in no batch; preempt: preempts the running sequence
        that is due last."""
        self._rows = rows
        self._row_blocks = row_blocks
        self._batches = batches
        self._held = held
        self._preempt = preempt

    def take(self, slots: Slots, *, outstanding: bool, prefilling: bool) -> Slots | None:
        """Return the running `slots` whose next input is a sampled token, each with a block to
        write that token to; None if that takes a preemption which has to wait for
        outstanding tokens. prefilling: rows have given tokens left to compute."""
        rows = self._rows
        if outstanding:
            # A row at its full length, if only at its most, waits for its last tokens' values.
            able = rows.num_tokens[slots] <= rows.last_position[slots]
            if np.count_nonzero(able) < len(slots):
                slots = slots[able]
        if prefilling:
            slots = slots[rows.num_computed[slots] >= rows.num_given[slots]]
        if self._held:
            slots = self.not_held(slots)
        while len(full := self._row_blocks.full(slots)):
            if self._row_blocks.can_append(len(full)):
                self._batches.append_blocks(self._row_blocks.append(full))
            else:
                left = self._append_preempting(slots, full.tolist(), outstanding=outstanding)
                if left is None:
                    return None
                slots = left
            if not self._row_blocks.lookahead:  # one token takes one more block at most
                break
        return slots

    def not_held(self, slots: Slots) -> Slots:
        """Return the slots of sequences that take part in batches."""
        return slots[~np.isin(self._rows.request_ids[slots], list(self._held))]

    def _append_preempting(
        self, slots: Slots, full: list[int], *, outstanding: bool
    ) -> Slots | None:
        """Append a block to each of `full`, one by one, preempting the sequence that is due last.
        Returns the rest of `slots`; None if an outstanding token would be lost."""
        sequences = self._rows.sequences
        for slot in full:
            while sequences[slot] is not None and not self._row_blocks.can_append(1):
                if outstanding:
                    return None
                self._preempt()
            if sequences[slot] is not None:  # else it was preempted itself
                appends = self._row_blocks.append(np.array([slot], dtype=np.intp))
                self._batches.append_blocks(appends)
        return slots[[sequences[slot] is not None for slot in slots.tolist()]]
