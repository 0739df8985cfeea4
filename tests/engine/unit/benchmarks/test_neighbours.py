"""The neighbours' benchmark sends what its table says, and judges by its goals."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.neighbours.__main__ import HEAD, line_of
from benchmarks.neighbours.rows import ROWS, Row, Victim, encoded, verdict_of

IDLE = Victim((0.02, 0.01, 0.01), 0.004)
# Of rows that are named by the size of their bodies: the bytes at least.
SIZES = {
    "tokenize-7mb": 7_000_000, "count-tokens-1mb": 1_000_000, "tools-1mb": 1_000_000,
    "text-8mb": 8_000_000, "token-ids-8mb": 8_000_000,
}  # fmt: skip


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_body_is_as_its_row_says(row: Row) -> None:
    body = encoded(row.body(random.Random(0)))
    assert json.loads(body)["model"] == "bench"
    assert len(body) >= SIZES.get(row.name, 0)
    assert row.connections > 0
    assert row.path.startswith("/")


@pytest.mark.parametrize("name", ["crowd", "long-prompts", "schemas-900"])
def test_two_requests_of_a_row_differ_so_that_no_cache_answers_them(name: str) -> None:
    row = next(row for row in ROWS if row.name == name)
    draw = random.Random(0)
    assert row.body(draw) != row.body(draw)


@pytest.mark.parametrize(
    ("first_tokens", "gap", "held"),
    [
        ((0.04, 0.05, 0.9), 0.5, True),
        ((0.04, 0.06, 0.06), 0.4, False),
        ((0.01, 0.01, 0.01), 0.6, False),
    ],
)
def test_a_goal_is_missed_by_the_median_first_token_or_by_the_gap(
    first_tokens: tuple[float, ...], gap: float, held: bool
) -> None:
    row = Row("x", "/x", 1, lambda _: {})
    verdict = verdict_of(row, IDLE, Victim(first_tokens, gap))
    assert verdict.held is held
    assert verdict.longest_ms == pytest.approx(max(first_tokens) * 1e3)
    line = line_of(verdict)
    assert len(line) <= len(HEAD)
    assert ("NO" in line) is not held
