"""What the choice of drafts is worth on texts that repeat, and what it costs on others."""

from __future__ import annotations

import statistics

import pytest

from atom.model_ops.drafts import Lookup
from benchmarks.draft_policy import look_up, play, text


@pytest.mark.parametrize(
    ("rows", "repeating", "random"), [(1, 2.2, 0.98), (16, 1.5, 0.98), (64, 0.98, 0.98)]
)
def test_texts_that_repeat_gain_and_others_lose_next_to_nothing(
    rows: int, repeating: float, random: float
) -> None:
    def ratio(name: str) -> float:
        return statistics.mean(
            play(text(name, seed), rows, Lookup(1, 8), most=5).ratio for seed in (1001, 2001)
        )

    for name in ("edit", "json", "quote"):
        assert ratio(name) > repeating, name
    assert random < ratio("random") <= 1.0


def test_the_newest_of_the_longest_matches_is_drafted() -> None:
    lookup = Lookup(fewest=2, most=8)
    assert look_up([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], lookup, 2) == [9, 2]
    assert look_up([2, 3, 9, 2, 3, 8, 2, 3], lookup, 2) == [8, 2]
    assert look_up([7, 5, 6, 5, 6], lookup, 4) == [5, 6, 5, 6]
    assert look_up([1, 2, 3, 2], lookup, 4) == []
