"""Which long chunks of prompts, behind a history, a library attends to, and in which pieces. What a
long prompt has behind its leading tokens is such a chunk, too.

A library makes a plan for each pair of lengths that it meets, which takes longer than many a step,
and knows no mask but a whole chunk's own. So a chunk's queries are cut into tiles, and all that
they see into pieces, of a few lengths; tiles begin and end at multiples of the shortest, where
pieces do, too. A tile sees every piece before it as a whole, and of its own tokens those up to each
query. What is left over on either side of the tiles, the paged kernel computes.

Torch-free, pure; called where a step's metadata is made, and by the backend that carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.utils.forward_context import EqualPrompts, LongChunk

# Of tiles and pieces: the longest bounds what is gathered of the cache at a time, the shortest what
# is left over. Each pair of lengths is a plan of some 40 ms at the start.
_LENGTHS = (8192, 4096, 2048)
_UNIT = _LENGTHS[-1]
# Of a chunk's queries, at least this share is in tiles, or the paged kernel computes all of them.
_LEAST_SHARE = 1 / 2


@dataclass(frozen=True, slots=True)
class Tile:
    """Neighbouring queries of a chunk: first counts from the chunk's first query. is_causal: they
    are the piece's own tokens, of which each sees those up to itself."""

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
    """Of the rows from `first_row` on, those behind a history that a library may attend to."""
    token = int(num_scheduled[:first_row].sum())
    chunks: list[LongChunk] = []
    rows = zip(num_computed[first_row:].tolist(), num_scheduled[first_row:].tolist(), strict=True)
    for row, (computed, length) in enumerate(rows, start=first_row):
        begins = -(-computed // _UNIT) * _UNIT
        ends = (computed + length) // _UNIT * _UNIT
        if computed > 0 and ends - begins >= max(_UNIT, length * _LEAST_SHARE):
            head = begins - computed
            chunks.append(
                LongChunk(row, token, length, head, _parts(begins), _parts(ends - begins))
            )
        token += length
    return tuple(chunks)


def rest_of(group: EqualPrompts) -> LongChunk | None:
    """What a single prompt has behind its leading tokens, as a chunk whose head these are; None
    where it is too little for a tile."""
    count = (group.length - group.leading) // _UNIT * _UNIT
    if group.rows > 1 or count == 0 or group.leading % _UNIT:
        return None
    return LongChunk(
        group.first_row, group.first_token, group.length, group.leading,
        _parts(group.leading), _parts(count),
    )  # fmt: skip


def pieces_of(chunk: LongChunk) -> Iterator[Piece]:
    """What the chunk's tiles see, in order: its history, then its own tokens."""
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
    """Chunks (tokens computed before, tokens of the step) that together have every pair of lengths
    that may come, in steps of so many tokens and sequences up to the longest."""
    return [
        (history, tile)
        for tile in _LENGTHS
        for history in _LENGTHS
        if tile <= most_tokens and history + tile <= longest
    ]


def largest_chunk(most_tokens: int, longest: int) -> tuple[int, int] | None:
    """The chunk (tokens computed before, tokens of the step) that takes the most memory, in steps
    of so many tokens and sequences up to the longest; None where there is none."""
    count = min(most_tokens, longest - _UNIT)
    return (min(_LENGTHS[0], longest - count), count) if count >= _UNIT else None


def _parts(tokens: int) -> tuple[int, ...]:
    """A multiple of the shortest length, as few lengths as there can be, the longest first."""
    parts: list[int] = []
    for length in _LENGTHS:
        count, tokens = divmod(tokens, length)
        parts += [length] * count
    return tuple(parts)
