"""SlotTable: a device tensor with a row for every slot that needs one.

For state that few requests need and that is too large to keep for every slot: memory grows with the
requests that use it (to the most that ran at once), and is zero without such requests. Row 0
belongs to no slot: batches that mix users and others may read and write it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import Slots

_FIRST_ROWS = 8


class SlotTable:
    """Hold a table on the device with a row for each slot that needs one. rows [capacity, width]; a
    new row's content is undefined, row 0 is zeros until a batch writes to it."""

    def __init__(
        self, num_slots: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows = torch.zeros((1, width), dtype=dtype, device=device)
        self._row_of_slot = np.zeros(num_slots, dtype=np.int64)
        self._free: list[int] = []

    def take(self, slot: int) -> torch.Tensor:
        """Return the slot's row [width], to be filled; its own already, or another slot's old
        one."""
        row = int(self._row_of_slot[slot])
        if row == 0:
            if not self._free:
                self._grow()
            row = self._free.pop()
            self._row_of_slot[slot] = row
        return self.rows[row]

    def release(self, slot: int) -> None:
        """Release the slot's row, if it has one."""
        row = int(self._row_of_slot[slot])
        if row:
            self._free.append(row)
            self._row_of_slot[slot] = 0

    def rows_of(self, slots: Slots) -> NDArray[np.int64]:
        """Return which row each slot has, 0 for none."""
        return self._row_of_slot[slots]

    def _grow(self) -> None:
        old, most = len(self.rows), len(self._row_of_slot) + 1
        new = min(most, max(_FIRST_ROWS, 2 * old))
        grown = self.rows.new_zeros((new, self.rows.shape[1]))
        grown[:old] = self.rows
        self.rows = grown
        self._free = list(range(new - 1, old - 1, -1))
