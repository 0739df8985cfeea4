"""Resolve anchors: the whole texts that contain a match of an expression, or match it as a whole.

JSON schema's `pattern` is searched for, not matched whole. Anchors in the middle count: the text
before a start, or after an end, must be empty. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from atom.structured_outputs.regex.parser import parse
from atom.structured_outputs.regex.syntax import (
    ANY_TEXT,
    EMPTY,
    Anchor,
    Characters,
    Choice,
    Node,
    RegexError,
    Repeat,
    Sequence,
    choice,
    nullable,
    repeat,
    sequence,
)

_MAX_BRANCHES = 64


@lru_cache(maxsize=512)
def searched(text: str) -> Node:
    """Return all texts that contain a match of the expression. Raises `RegexError`."""
    found = []
    for branch in _branches(parse(text)):
        if nullable(branch.body) and not (branch.at_start and branch.at_end):
            return ANY_TEXT
        found.append(_between(branch))
    return choice(*found)


def matched(text: str) -> Node:
    """Return all texts that the expression matches from start to end. Raises `RegexError`."""
    return choice(*(branch.body for branch in _branches(parse(text))))


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch of an expression: a body without anchors, and the anchors at its ends."""

    at_start: bool
    body: Node
    at_end: bool


def _between(branch: _Branch) -> Node:
    """Add free text on the sides without an anchor; parts next to it need not repeat."""
    parts = list(branch.body.parts if isinstance(branch.body, Sequence) else [branch.body])
    if not branch.at_start:
        parts = _least(parts)
    if not branch.at_end:
        parts = _least(parts[::-1])[::-1]
    start = EMPTY if branch.at_start else ANY_TEXT
    return sequence(start, *parts, EMPTY if branch.at_end else ANY_TEXT)


def _least(parts: list[Node]) -> list[Node]:
    while parts and isinstance(parts[0], Repeat):
        first = parts[0]
        if first.low > 1 and not isinstance(first.node, Characters):
            break
        rest = [repeat(first.node, first.low, first.low)] if first.low else []
        if rest:
            return [*rest, *parts[1:]]
        parts = parts[1:]
    return parts


def _branches(node: Node) -> list[_Branch]:
    """Return the branches of the tree. Raises `RegexError` for anchors within a repetition, or too
    many branches."""
    if not _has_anchor(node):
        return [_Branch(False, node, False)]
    match node:
        case Anchor():
            return [_Branch(node.at_start, EMPTY, not node.at_start)]
        case Choice():
            found = [branch for option in node.options for branch in _branches(option)]
        case Sequence():
            found = [_Branch(False, EMPTY, False)]
            for part in node.parts:
                pairs = product(found, _branches(part))
                found = [both for pair in pairs if (both := _joined(*pair)) is not None]
                _check_count(found)
        case Repeat() if (node.low, node.high) == (0, 1):
            found = [_Branch(False, EMPTY, False), *_branches(node.node)]
        case _:
            raise RegexError(
                "an anchor (^ or $) within a repetition is not kept by this server; write the "
                "expression without it"
            )
    _check_count(found)
    return found


def _check_count(found: list[_Branch]) -> None:
    if len(found) > _MAX_BRANCHES:
        raise RegexError(
            f"its anchors make more than {_MAX_BRANCHES} expressions of it; write ^ and $ once, "
            f"around a group"
        )


def _joined(left: _Branch, right: _Branch) -> _Branch | None:
    """Concatenate two branches; return None if an anchor in the middle cannot hold."""
    before, after = left.body, right.body
    if right.at_start:
        if not nullable(before):
            return None
        before = EMPTY
    if left.at_end:
        if not nullable(after):
            return None
        after = EMPTY
    at_start, at_end = left.at_start or right.at_start, left.at_end or right.at_end
    return _Branch(at_start, sequence(before, after), at_end)


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Sequence():
            return any(map(_has_anchor, node.parts))
        case Choice():
            return any(map(_has_anchor, node.options))
        case Repeat():
            return _has_anchor(node.node)
        case _:
            return False
