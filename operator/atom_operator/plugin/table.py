"""Columns for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns as wide as they need; the last one is not padded."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()
