"""HostRing: the host's end of the ring buffer between the host and captured steps.

Call `post` before submitting a step's forward, `answer` after its sampling. The host counts entries
as the device does, so neither has to send an index. The host reuses an entry three steps later: the
pipeline has collected the step that used it by then.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import Slots
from atom.model_engine.runner.host_tokens import PendingRuns, PendingTokens
from atom.model_engine.runner.verify_rows import VerifyRows
from atom.model_ops.backends.pinned_ring import RING_ENTRIES, empty_ring
from atom.model_ops.slots import SlotTensors


class HostRing:
    def __init__(self, state: SlotTensors, several_tokens: int = 0) -> None:
        """several_tokens: the most tokens of a step whose rows may get several; 0 if none may."""
        self.ring = empty_ring(state, several_tokens)
        self._said: NDArray[np.int32] = self.ring.said.numpy()
        self._padding_slot = state.padding_slot
        count = RING_ENTRIES if state.last_token.is_cuda else 0
        self._answered = [torch.cuda.Event() for _ in range(count)]
        self._posted = 0

    def restart(self) -> None:
        """Count from the start, once the steps that were run for their capture are forgotten."""
        self.ring.turn.zero_()
        self._posted = 0

    def post(
        self,
        slots: Slots,
        appends: NDArray[np.int32],
        proposed: NDArray[np.int32] | None = None,
    ) -> None:
        """Send the device the next step: the slots of its rows, its appended blocks [A, 3] as slot,
        column of its tables, block id, and the number of proposed tokens of each row, if there are
        any."""
        entry = self._said[self._posted % RING_ENTRIES]
        self._posted += 1
        entry[0, : len(slots)] = slots
        entry[0, len(slots) :] = self._padding_slot
        entry[1:4, : len(appends)] = appends.T
        entry[1, len(appends) :] = self._padding_slot
        if proposed is not None:
            entry[4, : len(proposed)] = proposed
            entry[4, len(proposed) :] = 0

    def answer(self, rows: int) -> PendingTokens:
        """Return the tokens of the step posted last, whose sampling was submitted just now."""
        answer, answered = self._answer()
        return PendingTokens(answer[0, :rows], answered)

    def answer_runs(self, rows: VerifyRows) -> PendingRuns:
        """Return the pending tokens of the step posted last, which has just been verified."""
        answer, answered = self._answer()
        count = len(rows.slots)
        return PendingRuns(
            answer[0, : len(rows.row)], answer[1, :count], answer[2, :count], rows.row,
            rows.offset, answered,
        )  # fmt: skip

    def _answer(self) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        place = (self._posted - 1) % RING_ENTRIES
        answered = self._answered[place] if self._answered else None
        if answered is not None:  # without a GPU the answer is there
            answered.record()
        return self.ring.answers[place], answered
