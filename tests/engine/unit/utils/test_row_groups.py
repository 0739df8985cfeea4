"""Which prompts of a step a dense attention may take, and how much of each."""

from __future__ import annotations

import numpy as np
import pytest

from atom.utils.forward_context import EqualPrompts
from atom.utils.row_groups import dense_lengths, leading_tokens, long_prompts


def groups(rows: list[tuple[int, int]], first_row: int = 0) -> tuple[EqualPrompts, ...]:
    """rows: (tokens computed before, tokens of this step)."""
    computed, scheduled = np.array(rows, dtype=np.int32).T
    return long_prompts(computed, scheduled, first_row)


def test_neighbours_of_one_round_length_are_a_group() -> None:
    rows = [(90, 1), (0, 2048), (0, 2048), (0, 300)]
    assert groups(rows, first_row=1) == (EqualPrompts(1, 2, 1, 2048, 2048),)


def test_neighbours_of_an_odd_length_are_not() -> None:
    """A library would make a plan for every such length, and use it once."""
    assert groups([(0, 2100), (0, 2100)]) == ()


def test_of_a_long_prompt_the_leading_part_has_one_of_few_lengths() -> None:
    assert groups([(0, 7), (0, 5000), (0, 5000)]) == (
        EqualPrompts(1, 1, 7, 5000, 4096),
        EqualPrompts(2, 1, 5007, 5000, 4096),
    )
    lengths = {leading_tokens(length) for length in range(4096, 40_000)}
    assert sorted(lengths) == dense_lengths(39_999)
    assert sorted(lengths) == [4096, 6144, 8192, 12288, 16384, 24576, 32768]


@pytest.mark.parametrize("row", [(0, 4095), (16, 8192)])
def test_short_prompts_and_chunks_with_history_are_left_alone(row: tuple[int, int]) -> None:
    assert groups([row]) == ()


@pytest.mark.parametrize(("most", "count"), [(0, 0), (4095, 0), (4096, 1), (16384, 5)])
def test_the_lengths_that_may_come_are_known(most: int, count: int) -> None:
    assert len(dense_lengths(most)) == count
