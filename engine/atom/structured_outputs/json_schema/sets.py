"""Sets: arrays of distinct items from a short list. Pure.

If the list is short enough to write every order, the items come in any order; otherwise they keep
the list's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from atom.structured_outputs.grammar_writer import GrammarWriter
from atom.structured_outputs.json_schema.rows import Part, Row, write_row

_ANY_ORDER = 5

Bounds = tuple[int, int | None]


def write_set(items: Sequence[str], bounds: Bounds, comma: str, writer: GrammarWriter) -> str:
    """Write a set as an element of the grammar; bounds: of the number of items."""
    if len(items) > _ANY_ORDER:
        return write_row(Row([Part(item) for item in items], None, *bounds), comma, writer)
    return _left(frozenset(range(len(items))), items, bounds, (comma, writer))


def _left(
    left: frozenset[int], items: Sequence[str], bounds: Bounds, style: tuple[str, GrammarWriter]
) -> str:
    """Write the grammar of the rest of an array when these items are left."""
    comma, writer = style
    came, (low, high) = len(items) - len(left), bounds
    options = ['""'] if came >= low else []
    if left and (high is None or came < high):
        separator = f"{comma} " if came else ""
        for one in sorted(left):
            options.append(f"{separator}{items[one]} {_left(left - {one}, items, bounds, style)}")
    return writer.rule("u", " | ".join(options))
