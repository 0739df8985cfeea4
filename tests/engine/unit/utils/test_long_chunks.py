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

LENGTHS = {8192, 4096, 2048}


def chunks(rows: list[tuple[int, int]], first_row: int = 0) -> tuple[LongChunk, ...]:
    """rows: (tokens computed before, tokens of this step)."""
    computed, scheduled = np.array(rows, dtype=np.int32).reshape(-1, 2).T
    return long_chunks(computed, scheduled, first_row)


def test_tiles_lie_where_pieces_do() -> None:
    rows = [(90, 1), (16_384, 16_384), (0, 9000), (16_383, 10_000), (100, 3)]
    assert chunks(rows, first_row=1) == (
        LongChunk(1, 1, 16_384, 0, (8192, 8192), (8192, 8192)),
        LongChunk(3, 25_385, 10_000, 1, (8192, 8192), (8192,)),
    )


@pytest.mark.parametrize(
    "row",
    [(0, 16_384), (2048, 2047), (2049, 4000), (100, 6000)],
    ids=["no history", "short", "no tile", "most of it beside tiles"],
)
def test_other_rows_are_left_alone(row: tuple[int, int]) -> None:
    assert chunks([row]) == ()


def test_a_short_history_is_in_a_piece_with_the_first_queries() -> None:
    assert chunks([(768, 16_384)]) == (LongChunk(0, 0, 16_384, 1280, (2048,), (8192, 4096, 2048)),)


def test_what_a_prompt_has_behind_its_leading_tokens_is_a_chunk() -> None:
    group = EqualPrompts(3, 1, 7, 16_383, leading=12_288)
    assert rest_of(group) == LongChunk(3, 7, 16_383, 12_288, (8192, 4096), (2048,))
    first, second, own = pieces_of(rest_of(group))
    assert (first.first, second.first, own.first) == (0, 8192, 12_288)
    assert [tile.first for tile in own.tiles] == [12_288]


@pytest.mark.parametrize("leading", [4096, 5000])
def test_too_short_a_rest_is_none(leading: int) -> None:
    assert rest_of(EqualPrompts(0, 1, 0, 6143 if leading == 4096 else 9000, leading)) is None


@pytest.mark.parametrize(
    "row", [(2048, 2048), (100, 8000), (16_383, 10_000), (40_000, 16_384), (14_336, 14_337)]
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


@pytest.mark.parametrize(("most", "longest"), [(16_384, 40_959), (8192, 12_288), (512, 40_959)])
def test_the_pairs_of_lengths_that_may_come_are_planned(most: int, longest: int) -> None:
    def pairs(rows: list[tuple[int, int]]) -> set[tuple[int, int, bool]]:
        return {
            (tile.length, piece.length, tile.is_causal)
            for row in rows
            for chunk in chunks([row])
            for piece in pieces_of(chunk)
            for tile in piece.tiles
        }

    planned = planned_chunks(most, longest)
    assert all(count <= most and computed + count <= longest for computed, count in planned)
    assert len(chunks(planned)) == len(planned)
    sizes = [2048, 2049, 4095, 6000, 7777, 8192, 12_288, 16_384, 24_000]
    possible = [
        (computed, count)
        for computed in sizes
        for count in sizes
        if count <= most and computed + count <= longest
    ]
    assert pairs(possible) <= pairs(planned)


@pytest.mark.parametrize(
    ("most", "longest", "largest"),
    [
        (16_384, 40_959, (8192, 16_384)),
        (16_384, 16_383, (2048, 14_335)),
        (2048, 4096, (2048, 2048)),
        (2047, 40_959, None),
        (16_384, 4095, None),
    ],
)
def test_the_chunk_that_takes_the_most_memory(
    most: int, longest: int, largest: tuple[int, int] | None
) -> None:
    assert largest_chunk(most, longest) == largest
    assert (largest is None) == (planned_chunks(most, longest) == [])
    if largest is not None:
        assert chunks([largest])
