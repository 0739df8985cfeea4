from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.runner.slots.slot_table import SlotTable

SLOTS = 40


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SLOTS - 1)), max_size=200))
def test_every_slot_keeps_its_own_row_whoever_comes_and_goes(
    moves: list[tuple[bool, int]],
) -> None:
    table = SlotTable(SLOTS, 2, torch.int64, torch.device("cpu"))
    expected: dict[int, int] = {}
    most = 0
    for stamp, (takes, slot) in enumerate(moves, 1):
        if takes:
            table.take(slot).fill_(stamp)
            expected[slot] = stamp
        else:
            table.release(slot)
            expected.pop(slot, None)
        most = max(most, len(expected))
    rows = table.rows_of(np.arange(SLOTS))
    held = {slot: int(table.rows[row, 0]) for slot, row in enumerate(rows.tolist()) if row}
    assert held == expected
    assert table.rows[0].tolist() == [0, 0]
    # No more memory than the most that was needed at once calls for.
    assert len(table.rows) <= max(1, 8 if most else 1, 2 * (most + 1))
