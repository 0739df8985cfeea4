"""Select the long chunks after a history that a library attends to, and cut them into pieces. The
rest of a long prompt after its leading tokens is such a chunk, too.

A library makes a plan for each new pair of lengths, which takes longer than many a step, and
supports only a causal mask over a whole chunk. So a chunk's queries are cut into tiles, and their
context into pieces, of a few lengths. Tiles begin and end at multiples of the shortest length, as
pieces do. A tile sees every earlier piece as a whole, and its own tokens causally. The paged kernel
computes the remainder on either side of the tiles.

Torch-free, pure; called where a step's metadata is made, and by the backend that computes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.utils.forward_context import EqualPrompts, LongChunk

# Lengths of tiles and pieces: the longest bounds the tokens gathered from the cache at a time, the
# shortest the remainder. Each pair of lengths needs a plan of some 40 ms at the start.
_LENGTHS = (8192, 4096, 1024)
# Of a chunk's queries, at least this share is in tiles, or the paged kernel computes all of them.
_LEAST_SHARE = 1 / 2
# Queries in tiles times tokens that the last of them sees: below, calls take the host longer than
# they save on a small model's device. A prompt's rest is computed together with its leading part.
_LEAST_SEEN, _LEAST_SEEN_BY_REST = 1 << 26, 1 << 25


@dataclass(frozen=True, slots=True)
class Tile:
    """Neighbouring queries of a chunk: first counts from the chunk's first query. is_causal: they
    are the piece's own tokens, and each sees the tokens up to itself."""

    first: int
    length: int
    is_causal: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of a chunk's context, and the tiles that see them."""

    first: int
    length: int
    tiles: tuple[Tile, ...]


def long_chunks(
    num_computed: NDArray[np.integer], num_scheduled: NDArray[np.integer], first_row: int
) -> tuple[LongChunk, ...]:
    """Find, among the rows from `first_row` on, the chunks after a history that a library may
    attend to."""
    token = int(num_scheduled[:first_row].sum())
    chunks: list[LongChunk] = []
    rows = zip(num_computed[first_row:].tolist(), num_scheduled[first_row:].tolist(), strict=True)
    for row, (computed, length) in enumerate(rows, start=first_row):
        begins, ends = -(-computed // _unit()) * _unit(), _floor(computed + length)
        tiles = ends - begins
        if computed > 0 and tiles >= length * _LEAST_SHARE and tiles * ends >= _LEAST_SEEN:
            head = begins - computed
            chunks.append(LongChunk(row, token, length, head, _parts(begins), _parts(tiles)))
        token += length
    return tuple(chunks)


def rest_of(group: EqualPrompts) -> LongChunk | None:
    """Return the rest of a single prompt after its leading tokens as a chunk, with these tokens as
    its head; None if the rest is too short."""
    leading, tiles = group.leading, _floor(group.length - group.leading)
    seen = tiles * (leading + tiles)
    if group.rows > 1 or seen < _LEAST_SEEN_BY_REST or leading % _unit():
        return None
    return LongChunk(
        group.first_row, group.first_token, group.length, leading, _parts(leading), _parts(tiles)
    )


def pieces_of(chunk: LongChunk) -> Iterator[Piece]:
    """Yield the pieces of context that the chunk's tiles see: its history, then its own tokens."""
    first = 0
    tiles: list[Tile] = []
    at = chunk.head
    for length in chunk.tiles:
        tiles.append(Tile(at, length, is_causal=False))
        at += length
    for length in chunk.history:
        yield Piece(first, length, tuple(tiles))
        first += length
    for index, tile in enumerate(tiles):
        own = Tile(tile.first, tile.length, is_causal=True)
        yield Piece(first, tile.length, (own, *tiles[index + 1 :]))
        first += tile.length


def planned_chunks(most_tokens: int, longest: int) -> list[tuple[int, int]]:
    """Return a few chunks (tokens computed before, tokens of the step) that together have every
    pair of lengths that may occur, in steps of so many tokens and sequences up to the longest."""
    planned: list[tuple[int, int]] = []
    met: set[tuple[int, int, bool]] = set()
    histories = _varied(longest)
    for count, computed in itertools.product(_varied(min(most_tokens, longest)), histories):
        pairs = _pairs(computed, count) if computed + count <= longest else set()
        if not pairs <= met:
            planned.append((computed, count))
            met |= pairs
        if len(met) == len(_LENGTHS) * (len(_LENGTHS) + 1):
            break
    return planned


def largest_chunk(most_tokens: int, longest: int) -> tuple[int, int] | None:
    """Return the chunk (tokens computed before, tokens of the step) that takes the most memory, in
    steps of so many tokens and sequences up to the longest; None if there is none."""
    count = min(most_tokens, longest - _unit())
    for computed in (min(_LENGTHS[0], longest - count), longest - count):
        if _pairs(computed, count):
            return computed, count
    return None


def _varied(most: int) -> list[int]:
    """Return the multiples of the shortest length up to `most`, those with the most different
    lengths first."""
    multiples = range(_unit(), most + 1, _unit())
    return sorted(multiples, key=lambda tokens: (-len(set(_parts(tokens))), tokens))


def _pairs(computed: int, count: int) -> set[tuple[int, int, bool]]:
    """Return the lengths of tiles and pieces of a chunk, and whether a tile is its piece's own."""
    return {
        (tile.length, piece.length, tile.is_causal)
        for chunk in long_chunks(np.array([computed]), np.array([count]), 0)
        for piece in pieces_of(chunk)
        for tile in piece.tiles
    }


def _parts(tokens: int) -> tuple[int, ...]:
    """Divide a multiple of the shortest length into the fewest lengths, the longest first."""
    parts: list[int] = []
    for length in _LENGTHS:
        count, tokens = divmod(tokens, length)
        parts += [length] * count
    return tuple(parts)


def _floor(tokens: int) -> int:
    return tokens // _unit() * _unit()


def _unit() -> int:
    return _LENGTHS[-1]
