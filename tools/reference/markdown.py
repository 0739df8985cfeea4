"""Pieces of Markdown that the reference pages share: a page's head, tables, cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_GENERATED = "<!-- Written by `make generate` from the code; edit that. -->"


def head(title: str, text: str) -> str:
    return f"# {title}\n{_GENERATED}\n\n{text.strip()}\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """A text within a table. A bar ends a cell even within backticks; a `<` would begin a tag."""
    escaped = " ".join(text.split()).replace("|", "\\|")
    parts = escaped.split("`")  # every second one is code
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def code(text: object) -> str:
    return f"`{text}`"


def codes(names: Iterable[object]) -> str:
    return ", ".join(map(code, names))
