"""TokenHistory: the tokens of a sequence so far, on the device, for the rows that need them.

Penalties need the count of each token, bad words need the newest few. Both are filled when a row
enters, from the host's data, and then follow the sampled tokens without the host: so they are exact
with deferred output, and after a preemption.
"""

from __future__ import annotations

import numpy as np
import torch

from atom.model_engine.batch import NewRow, Slots
from atom.model_engine.runner.slots.slot_table import SlotTable
from atom.model_ops.drafts import DrawnRuns
from atom.model_ops.sampling.draws_ahead import newest_of
from atom.model_ops.sampling.penalties import IN_PROMPT
from atom.sampling_params import MAX_BAD_WORD_TOKENS
from atom.utils.device import upload

# All tokens of a bad word but its last.
WINDOW = MAX_BAD_WORD_TOKENS - 1


class TokenHistory:
    """Counts and newest tokens of rows with a penalty. occurrences: [rows, V] int32 as in
    `Penalties`, 4 bytes of the vocabulary per row that has a penalty; recent: [rows, WINDOW] int32,
    newest last, -1 before the sequence's first."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self.occurrences = SlotTable(num_slots, vocab_size, torch.int32, device)
        self.recent = SlotTable(num_slots, WINDOW, torch.int32, device)

    def enter(self, row: NewRow) -> None:
        """Take the row's tokens as far as it needs them."""
        if row.params.penalizes:
            self._fill_occurrences(self.occurrences.take(row.slot), row)
        else:
            self.occurrences.release(row.slot)
        if any(len(word) > 1 for word in row.params.bad_words_token_ids):
            newest = np.full(WINDOW, -1, dtype=np.int32)
            known = row.token_ids[-WINDOW:]
            newest[WINDOW - len(known) :] = known
            self.recent.take(row.slot).copy_(upload(newest, self._device))
        else:
            self.recent.release(row.slot)

    def append(self, slots: Slots, token_ids: torch.Tensor) -> None:
        """Append the tokens [n] int64 that the slots' rows got."""
        counted = self.occurrences.rows_of(slots)
        if counted.any():
            table = self.occurrences.rows
            rows = upload(counted, self._device)
            # Row 0 stays zeros: it gets nothing added.
            at = rows * table.shape[1] + token_ids
            table.view(-1).index_add_(0, at, (rows > 0).to(torch.int32))
        remembered = self.recent.rows_of(slots)
        if remembered.any():
            table = self.recent.rows
            rows = upload(remembered, self._device)
            newest = token_ids.to(torch.int32).unsqueeze(1)
            table.index_copy_(0, rows, torch.cat([table[rows, 1:], newest], dim=1))

    def append_runs(self, slots: Slots, drawn: DrawnRuns, counts: torch.Tensor, most: int) -> None:
        """Append the accepted tokens to the slots' rows: `counts` [n] int64 of the drawn ones,
        `most` at most."""
        counted, remembered = self.occurrences.rows_of(slots), self.recent.rows_of(slots)
        if not (counted.any() or remembered.any()):
            return
        index = torch.arange(most, device=self._device)
        at = (drawn.first.unsqueeze(1) + index).clamp_max(len(drawn.token_ids) - 1)
        token_ids = drawn.token_ids[at]  # [n, most]
        if counted.any():
            table = self.occurrences.rows
            rows = upload(counted, self._device).unsqueeze(1)
            got = (rows > 0) & (index < counts.unsqueeze(1))
            at = rows * table.shape[1] + token_ids
            table.view(-1).index_add_(0, at.view(-1), got.view(-1).to(torch.int32))
        if remembered.any():
            table = self.recent.rows
            rows = upload(remembered, self._device)
            table.index_copy_(0, rows, newest_of(table[rows], token_ids, counts))

    def _fill_occurrences(self, occurrences: torch.Tensor, row: NewRow) -> None:
        token_ids, index = np.unique(row.token_ids, return_inverse=True)
        in_prompt = np.bincount(index[: row.num_prompt_tokens], minlength=len(token_ids)) > 0
        counts = np.bincount(index[row.num_prompt_tokens :], minlength=len(token_ids))
        counts = (counts + IN_PROMPT * in_prompt).astype(np.int32)
        occurrences.zero_()
        at = upload(token_ids.astype(np.int64), self._device)
        occurrences.index_copy_(0, at, upload(counts, self._device))
