"""Ranks add up so many rows themselves as cost them less than the library's sum."""

from __future__ import annotations

import pytest

from atom.sizing.overheads import rows_of_a_sum


@pytest.mark.parametrize(
    ("hidden", "ranks", "rows"),
    [(4096, 2, 256), (16384, 2, 256), (4096, 4, 64), (2048, 4, 128), (4096, 8, 27), (128, 8, 256)],
)
def test_more_ranks_add_up_fewer_rows(hidden: int, ranks: int, rows: int) -> None:
    assert rows_of_a_sum(2 * hidden, ranks) == rows


@pytest.mark.parametrize("ranks", range(1, 9))
def test_one_row_is_never_the_librarys(ranks: int) -> None:
    assert rows_of_a_sum(2**24, ranks) >= 1
