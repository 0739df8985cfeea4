"""A step's rows with a row for every token of a decode, prompts behind them."""

from __future__ import annotations

import numpy as np

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.verify_rows import verify_rows


def test_a_decodes_tokens_are_a_run_and_prompts_are_none() -> None:
    scheduled = np.array([3, 1, 2, 7, 9], dtype=np.int32)
    batch = ScheduledBatch(
        new_rows=(),
        block_appends=np.zeros((0, 3), dtype=np.int32),
        slots=np.array([5, 2, 7, 0, 1], dtype=np.int32),
        req_ids=np.arange(5, dtype=np.int64),
        num_computed_tokens=np.array([10, 20, 30, 0, 4], dtype=np.int32),
        num_scheduled_tokens=scheduled,
        samples=np.array([True, True, True, True, False]),
        num_decodes=3,
    )
    rows = verify_rows(batch, np.array([2, 0, 1], dtype=np.int32))
    assert rows.run_starts.tolist() == [0, 3, 4, 6]
    assert rows.run_starts.dtype == np.int32
    assert rows.batch.slots.tolist() == [5, 5, 5, 2, 7, 7, 0, 1]
    assert rows.batch.num_computed_tokens.tolist() == [10, 11, 12, 20, 30, 31, 0, 4]
    assert rows.batch.num_decodes == rows.run_starts[-1]
    alone = verify_rows(batch, np.zeros(3, dtype=np.int32))
    assert alone.run_starts.tolist() == [0, 1, 2, 3]
    assert alone.most_ahead == 0, "nothing follows, and rows attend as ever"
