"""Clients' regular expressions (ECMA-262's, as in JSON schema): parsed into a small tree, freed of
anchors, and written in the grammar library's notation. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from atom.structured_outputs.regex.search import matched, searched
from atom.structured_outputs.regex.syntax import RegexError, literal, shortest
from atom.structured_outputs.regex.written import written

__all__ = ["RegexError", "literal_text", "one_of_texts", "spanned", "within"]


def spanned(text: str) -> str:
    """Return the expression of the texts that `text` matches from start to end, as the library
    reads it. Raises ValueError with the part that is not supported, its place, and the
    alternative."""
    node = matched(text)
    if shortest(node) == inf:
        raise RegexError(f"no text matches the regular expression {text!r}; mend it")
    return written(node)


def within(text: str) -> str:
    """Return the expression of the whole texts that contain a match of `text`, as JSON schema's
    `pattern` means it. Raises ValueError as `spanned`."""
    return written(searched(text))


def literal_text(text: str) -> str:
    """Return the expression of one text."""
    return written(literal(text))


def one_of_texts(texts: Iterable[str]) -> str:
    """Return the expression of any of some texts."""
    return "(?:" + "|".join(map(literal_text, texts)) + ")"
