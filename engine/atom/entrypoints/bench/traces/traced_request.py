"""TracedRequest: describes one request of a trace, whatever its file's format."""

from __future__ import annotations

from dataclasses import dataclass

from atom.entrypoints.bench.replay import Departure


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """Hold counts of tokens, and the blocks that begin the prompt.
    hash_ids: equal ids are equal tokens in every prompt of the same scope; tokens after the last
    whole block are the request's own if it has no id. block_tokens: of each id."""

    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    block_tokens: int
    departure: Departure
    scope: str = ""


# Of a prompt or an answer: far beyond any context, and a prompt of it still fits into memory.
MOST_TOKENS = 2**24


def blocks_do_not_fit(input_tokens: int, ids: int, block_tokens: int) -> bool:
    """Return whether `ids` counts neither a prompt's whole blocks nor all blocks that it
    touches."""
    return ids not in (input_tokens // block_tokens, -(-input_tokens // block_tokens))
