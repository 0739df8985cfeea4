"""The tree of a regular expression, and properties of a tree that need no matching. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atom.structured_outputs.regex.character_set import EVERY, CharacterSet, of_code


class RegexError(ValueError):
    """An expression that is not kept; the message names the feature and the remedy."""


@dataclass(frozen=True, slots=True)
class Characters:
    """A single character of the set."""

    allowed: CharacterSet


@dataclass(frozen=True, slots=True)
class Sequence:
    """A concatenation of the parts; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of one option; without options, no text matches."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeats a node low to high times; high None: without end."""

    node: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start of the text, or its end."""

    at_start: bool


Node = Characters | Sequence | Choice | Repeat | Anchor

EMPTY = Sequence(())
NEVER = Choice(())
ANY_TEXT = Repeat(Characters(EVERY), 0, None)


def sequence(*parts: Node) -> Node:
    """Make a sequence of the parts, without nested sequences."""
    flat: list[Node] = []
    for part in parts:
        if part == NEVER:
            return NEVER
        flat.extend(part.parts if isinstance(part, Sequence) else (part,))
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(*options: Node) -> Node:
    """Make a choice of the distinct options; a single option is returned itself."""
    flat: dict[Node, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Choice) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def repeat(node: Node, low: int, high: int | None) -> Node:
    """Make a repetition without needless ambiguity: a node that repeats without bound is not empty
    itself."""
    if high == 0 or node in (EMPTY, NEVER):
        return NEVER if node == NEVER and low > 0 else EMPTY
    if (low, high) == (1, 1):
        return node
    if high is None and nullable(node):
        return Repeat(_without_empty(node), 0, None)
    if isinstance(node, Repeat) and node.low == 0 and node.high == 1 and low <= 1:
        return repeat(node.node, 0, high)
    return Repeat(node, low, high)


def _without_empty(node: Node) -> Node:
    """Find another node whose endless repetition is the same, with less that is empty in it (the
    star normal form of Brüggemann-Klein)."""
    if isinstance(node, Repeat) and (node.low == 0 or nullable(node.node)):
        return _without_empty(node.node)
    if isinstance(node, Choice):
        return choice(*(_without_empty(option) for option in node.options if option != EMPTY))
    if isinstance(node, Sequence) and node.parts and nullable(node):
        return choice(*(_without_empty(part) for part in node.parts))
    return node


def literal(text: str) -> Node:
    """Return the tree of the text itself."""
    return sequence(*(Characters(of_code(ord(character))) for character in text))


def nullable(node: Node) -> bool:
    """Return whether the empty text is of its language. Anchors count as empty."""
    return shortest(node) == 0


def shortest(node: Node) -> float:
    """Return the number of characters of the node's shortest text; infinite if it has no text."""
    match node:
        case Characters():
            return 1 if node.allowed else float("inf")
        case Sequence():
            return sum(map(shortest, node.parts))
        case Choice():
            return min(map(shortest, node.options), default=float("inf"))
        case Repeat():
            return shortest(node.node) * node.low if node.low else 0
        case Anchor():
            return 0


def longest(node: Node) -> float:
    """Return the number of characters of the node's longest text; infinite if there is no limit."""
    match node:
        case Characters():
            return 1
        case Sequence():
            return sum(map(longest, node.parts))
        case Choice():
            return max(map(longest, node.options), default=0)
        case Repeat():
            most = longest(node.node)
            return most and most * (float("inf") if node.high is None else node.high)
        case Anchor():
            return 0
