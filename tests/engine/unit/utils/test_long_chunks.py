"""Which chunks behind a history a library may take, and in which pieces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atom.utils.forward_context import EqualPrompts, LongChunk
from atom.utils.long_chunks import (
    largest_chunk,
    long_chunks,
    pieces_of,
    planned_chunks,
    rest_of,
)
from atom.utils.row_groups import long_prompts

LENGTHS = {8192, 4096, 1024}


def chunks(rows: list[tuple[int, int]], first_row: int = 0) -> tuple[LongChunk, ...]:
    """rows: (tokens computed before, tokens of this step)."""
    computed, scheduled = np.array(rows, dtype=np.int32).reshape(-1, 2).T
    return long_chunks(computed, scheduled, first_row)


def test_tiles_lie_where_pieces_do() -> None:
    rows = [(90, 1), (16_384, 16_384), (0, 9000), (16_383, 10_000), (100, 3)]
    assert chunks(rows, first_row=1) == (
        LongChunk(1, 1, 16_384, 0, (8192, 8192), (8192, 8192)),
        LongChunk(3, 25_385, 10_000, 1, (8192, 8192), (8192, 1024)),
    )


@pytest.mark.parametrize(
    "row",
    [(0, 16_384), (15_000, 3000), (40_000, 1900), (12_288, 4095)],
    ids=["no history", "short", "most of it beside tiles", "one query too short"],
)
def test_other_rows_are_left_alone(row: tuple[int, int]) -> None:
    assert chunks([row]) == ()
    assert chunks([(12_288, 4096)]) != ()


def test_a_short_history_is_in_a_piece_with_the_first_queries() -> None:
    (chunk,) = chunks([(768, 16_384)])
    assert chunk == LongChunk(0, 0, 16_384, 256, (1024,), (8192, 4096, *(1024,) * 3))


def test_what_a_prompt_has_behind_its_leading_tokens_is_a_chunk() -> None:
    group = EqualPrompts(3, 1, 7, 16_383, leading=12_288)
    rest = rest_of(group)
    assert rest == LongChunk(3, 7, 16_383, 12_288, (8192, 4096), (1024,) * 3)
    first, second, *own = pieces_of(rest)
    assert [piece.first for piece in (first, second, *own)] == [0, 8192, 12_288, 13_312, 14_336]
    assert [tile.first for tile in own[0].tiles] == [12_288, 13_312, 14_336]


@pytest.mark.parametrize(("length", "leading"), [(8191, 6144), (20_000, 12_000)])
def test_a_rest_that_is_short_or_begins_anywhere_is_none(length: int, leading: int) -> None:
    assert rest_of(EqualPrompts(0, 1, 0, length, leading)) is None


@pytest.mark.parametrize(
    "row", [(12_288, 4096), (100, 9300), (16_383, 10_000), (40_000, 16_384), (14_336, 14_337)]
)
def test_a_tile_sees_each_token_once(row: tuple[int, int]) -> None:
    computed, length = row
    (chunk,) = chunks([row])
    pieces = list(pieces_of(chunk))
    ends = [0, *itertools.accumulate(piece.length for piece in pieces)]
    assert [piece.first for piece in pieces] == ends[:-1]
    assert {piece.length for piece in pieces} <= LENGTHS
    assert ends[-1] == computed + chunk.head + sum(chunk.tiles) <= computed + length
    at = chunk.head
    for tile in chunk.tiles:
        seen = [
            (piece.first, piece.length, each.is_causal)
            for piece in pieces
            for each in piece.tiles
            if (each.first, each.length) == (at, tile)
        ]
        before, own = seen[:-1], seen[-1]
        assert own == (computed + at, tile, True)
        assert not any(is_causal for *_, is_causal in before)
        assert [first for first, *_ in before] == ends[: len(before)]
        assert sum(count for _, count, _ in before) == computed + at
        at += tile
    assert sum(len(piece.tiles) for piece in pieces) == sum(
        ends.index(computed + first) + 1
        for first in itertools.accumulate(chunk.tiles[:-1], initial=chunk.head)
    )


@pytest.mark.parametrize(
    ("most", "longest", "steps"),
    [
        (16_384, 40_959, 1),
        (8192, 40_959, 2),
        (8192, 12_288, 3),
        (16_384, 14_000, 4),
        (512, 40_959, 0),
    ],
)
def test_the_pairs_of_lengths_that_may_come_are_planned(
    most: int, longest: int, steps: int
) -> None:
    def pairs(rows: list[tuple[int, int]]) -> set[tuple[int, int, bool]]:
        taken = chunks(rows) if rows else ()
        return {
            (tile.length, piece.length, tile.is_causal)
            for chunk in taken
            for piece in pieces_of(chunk)
            for tile in piece.tiles
        }

    planned = planned_chunks(most, longest)
    assert all(count <= most and computed + count <= longest for computed, count in planned)
    assert len(planned) <= steps
    possible = [
        (computed, count)
        for computed in [*range(1024, 17_000, 512), *range(17_000, longest, 1500)]
        for count in range(1024, 17_000, 512)
        if count <= most and computed + count <= longest
    ]
    assert pairs(possible) == pairs(planned)
    prompts = [(0, length) for length in range(4096, min(most, longest) + 1, 512)]
    rests = [rest_of(group) for row in prompts for group in long_prompts(*np.array([row]).T, 0)]
    met = {
        (tile.length, piece.length, tile.is_causal)
        for rest in rests
        if rest is not None
        for piece in pieces_of(rest)
        for tile in piece.tiles
    }
    assert met <= pairs(planned)


@pytest.mark.parametrize(
    ("most", "longest", "largest"),
    [
        (16_384, 40_959, (8192, 16_384)),
        (16_384, 16_383, (1024, 15_359)),
        (4096, 16_384, (12_288, 4096)),
        (4096, 131_071, (126_975, 4096)),
        (512, 40_959, None),
        (16_384, 4095, None),
    ],
)
def test_the_chunk_that_takes_the_most_memory(
    most: int, longest: int, largest: tuple[int, int] | None
) -> None:
    assert largest_chunk(most, longest) == largest
