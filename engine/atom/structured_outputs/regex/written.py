"""Write the tree of an expression in the notation of Rust's regular expressions, which the grammar
library reads. Only ASCII: a character outside of letters and digits is written by its number, so
that the text can be quoted anywhere. Pure."""

from __future__ import annotations

from atom.structured_outputs.regex.character_set import EVERY, CharacterSet, of_code
from atom.structured_outputs.regex.syntax import (
    Anchor,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
)

NO_TEXT = r"[a&&b]"  # an empty class: no text matches


def written(node: Node) -> str:
    """Write a tree without anchors, as one unit that may be repeated or concatenated."""
    match node:
        case Characters():
            return _characters(node.allowed)
        case Sequence():
            return "(?:" + "".join(map(written, node.parts)) + ")"
        case Choice():
            return "(?:" + "|".join(map(written, node.options)) + ")" if node.options else NO_TEXT
        case Repeat():
            return "(?:" + written(node.node) + _count(node.low, node.high) + ")"
        case Anchor():
            raise AssertionError("search resolves anchors")


def _count(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _characters(allowed: CharacterSet) -> str:
    if allowed == EVERY:
        return "(?s:.)"
    # The library takes a class with every control character for one with every escape of JSON, a
    # quotation mark among them. No text of an answer has NUL.
    allowed -= of_code(0)
    if allowed.only is not None:
        return _character(allowed.only)
    ranges = (
        _character(first) if first == last else f"{_character(first)}-{_character(last)}"
        for first, last in allowed.ranges
    )
    return "[" + "".join(ranges) + "]" if allowed else NO_TEXT


def _character(code: int) -> str:
    plain = chr(code).isascii() and chr(code).isalnum()
    return chr(code) if plain else rf"\x{{{code:x}}}"
