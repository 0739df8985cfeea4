"""Drafts are counted by row, token and position, and the log tells of each thousand."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from atom.model_engine.wire.rank_answers import add_stats
from atom.speculation.acceptance import DraftCounts
from tests.support.engine_core.front_half import rank_stats


def test_drafts_are_counted_by_position() -> None:
    counts = DraftCounts()
    counts.observe(np.array([3, 0, 2], dtype=np.int32), np.array([2, 0, 0], dtype=np.int32))
    counts.observe(np.array([4], dtype=np.int32), np.array([1], dtype=np.int32))
    assert (counts.drafts, counts.tokens, counts.accepted) == (3, 9, 3)
    assert counts.accepted_at == [2, 1, 0, 0]


def test_steps_without_drafts_count_nothing() -> None:
    counts = DraftCounts()
    counts.observe(np.zeros(3, dtype=np.int32), np.zeros(3, dtype=np.int32))
    assert (counts.drafts, counts.accepted_at) == (0, [])


def test_the_log_tells_of_every_thousand_drafts(caplog: pytest.LogCaptureFixture) -> None:
    counts, drafted = DraftCounts(), np.full(250, 4, dtype=np.int32)
    with caplog.at_level(logging.INFO):
        for _ in range(9):
            counts.observe(drafted, np.ones(250, dtype=np.int32))
    lines = [record.getMessage() for record in caplog.records]
    assert (
        lines
        == [
            "speculation: of 1000 drafts with 4000 tokens 1000 tokens held (25.0 %), "
            "2.00 tokens a row and step"
        ]
        * 2
    )


def test_ranks_add_up_position_by_position() -> None:
    one = rank_stats(0, 1, accepted_at_totals=(3, 1), drafts_total=4).stats
    other = rank_stats(1, 1, accepted_at_totals=(5, 2, 1), drafts_total=6).stats
    total = add_stats([one, other])
    assert (total.accepted_at_totals, total.drafts_total) == ((8, 3, 1), 10)
