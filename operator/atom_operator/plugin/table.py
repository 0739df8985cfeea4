"""Columns for a terminal; where they do not fit, each row as a block of lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None
) -> Iterator[str]:
    """Yield lines with columns as wide as they need; the last one is not padded. `columns`: of the
    terminal, None if lines may be as long as they are."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
        yield from _blocks(header, rows)
        return
    for row in (header, *rows):
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    width = max(map(len, header))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, text in zip(header, row, strict=True):
            yield f"{name.ljust(width)}  {text}"
