"""RowTable: the running sequences' counters as numpy columns, one row per slot.

This is what lets a step cost little Python: schedule and update are vector operations over the
running slots, and only rows that cross a block boundary, finish or change are touched one by one.
Owned by Scheduler; torch-free.
"""

from __future__ import annotations

import numpy as np

from atom.model_engine.batch import NO_CONTINUATIONS
from atom.model_engine.sequence import NO_SLOT, Sequence

NO_REQUEST = -1  # request ids count from 0


class RowTable:
    """Hold the running rows' numbers as columns of length num_slots.

    num_given: tokens that the sequence entered with and the runner knows (the prompt; after a
    preemption also the generated tokens); num_tokens: tokens of prompt and answer, including those
    that a submitted step will sample, as an upper bound if the step may give several; num_computed:
    tokens whose KV is (or is being) computed, with the same bound; num_extra: tokens that the row's
    next step computes after its newest one (set by AcceptedTokens, 0 if rows get one token each);
    last_position: of the row's last token, one before the length at which it ends; ignore_eos: the
    model's end tokens do not end the row; request_ids: the sequence's id, NO_REQUEST in a free
    slot.
    Kept by RowBlocks: room: tokens that the row's blocks can hold (in groups with a window, once
    all that it entered with is computed); next_full: how many tokens have to be computed until its
    next block is full.
    continuations: foretold for the rows with num_extra, if the host drafts.
    token_ids: [num_slots, max_model_len] int32, valid up to num_tokens except for the tokens still
    to be sampled.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        self.num_given = np.zeros(num_slots, dtype=np.int32)
        self.num_tokens = np.zeros(num_slots, dtype=np.int32)
        self.num_computed = np.zeros(num_slots, dtype=np.int32)
        self.num_extra = np.zeros(num_slots, dtype=np.int32)
        self.continuations = NO_CONTINUATIONS
        self.last_position = np.zeros(num_slots, dtype=np.int32)
        self.room = np.zeros(num_slots, dtype=np.int32)
        self.next_full = np.zeros(num_slots, dtype=np.int32)
        self.ignore_eos = np.zeros(num_slots, dtype=np.bool_)
        self.request_ids = np.full(num_slots, NO_REQUEST, dtype=np.int64)
        # The system gives zeroed pages on first touch: short sequences never pay for long rows.
        self.token_ids = np.zeros((num_slots, max_model_len), dtype=np.int32)
        self.sequences: list[Sequence | None] = [None] * num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    @property
    def is_empty(self) -> bool:
        """Return whether no slot is taken."""
        return len(self._free_slots) == len(self.sequences)

    def sequence_in(self, slot: int) -> Sequence:
        """Return the sequence in a taken slot."""
        sequence = self.sequences[slot]
        assert sequence is not None, "the slot is free"
        return sequence

    def enter(self, sequence: Sequence) -> int:
        """Assign the sequence a slot and fill its row; none of its tokens is computed yet."""
        slot = self._free_slots.pop()
        sequence.slot = slot
        count = sequence.num_tokens
        self.token_ids[slot, :count] = sequence.token_ids
        self.num_given[slot] = self.num_tokens[slot] = count
        self.num_computed[slot] = 0
        self.last_position[slot] = sequence.max_total_tokens - 1
        self.ignore_eos[slot] = sequence.params.ignore_eos
        self.request_ids[slot] = sequence.id
        self.sequences[slot] = sequence
        return slot

    def leave(self, sequence: Sequence) -> None:
        """Take the tokens back into the sequence and free its slot."""
        slot = sequence.slot
        sequence.token_ids = self.token_ids[slot, : self.num_tokens[slot]].copy()
        self.sequences[slot] = None
        self.request_ids[slot] = NO_REQUEST
        sequence.slot = NO_SLOT
        self._free_slots.append(slot)
