"""The texts of a case as a language: its pattern, length, format and excluded values combined.

A single expression stays an expression, which is the fastest to match; several conditions become an
automaton. A long bound with a pattern is divided among the pattern's unbounded parts. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from atom.structured_outputs.json_schema.cases import Case, Reading, Texts
from atom.structured_outputs.json_schema.formats import FORMATS
from atom.structured_outputs.json_schema.keywords import UnkeptError
from atom.structured_outputs.regex.automaton import (
    Automaton,
    Condition,
    Expression,
    Length,
    build_automaton,
)
from atom.structured_outputs.regex.nfa import Nfa
from atom.structured_outputs.regex.search import searched
from atom.structured_outputs.regex.syntax import (
    NEVER,
    Characters,
    Choice,
    Node,
    RegexError,
    Repeat,
    Sequence,
    choice,
    literal,
    longest,
    repeat,
    sequence,
    shortest,
)

_MAX_COUNTED = 64  # a longer bound with a pattern is divided


@dataclass(frozen=True, slots=True)
class TextLanguage:
    """Any text of low to high characters, or an expression's, or an automaton's: the first that is
    not None; high None: without end."""

    node: Node | None = None
    automaton: Automaton | None = None
    low: int = 0
    high: int | None = None

    @property
    def is_empty(self) -> bool:
        if self.automaton is not None:
            return self.automaton.is_empty
        return self.node is not None and shortest(self.node) == inf


def text_language(case: Case) -> TextLanguage:
    """Return the language of a case's texts. Raises `SchemaError` if its conditions are not
    supported."""
    names = tuple(sorted({value for value in case.excluded if isinstance(value, str)}))
    return _language(case.texts, names)


@lru_cache(maxsize=512)
def _language(texts: Texts, excluded: tuple[str, ...]) -> TextLanguage:
    try:
        return _worked_out(texts, excluded)
    except RegexError as error:
        raise UnkeptError("pattern", f"is not kept: {error}") from None


def finds(pattern: str, text: str, *, loose: bool = False) -> bool:
    """Return whether an expression is found in a text; loose: to any dialect."""
    try:
        return _matches(_nfa(pattern, loose), text)
    except RegexError as error:
        raise UnkeptError("pattern", f"is not kept: {error}") from None


def reads(pattern: str, reading: Reading, text: str) -> bool:
    """Return whether a text is as a reading of a pattern asks."""
    found = finds(pattern, text, loose=reading is not Reading.MATCHES)
    return found != (reading is Reading.LACKS)


@lru_cache(maxsize=512)
def _nfa(pattern: str, loose: bool) -> Nfa:
    return Nfa(searched(pattern, loose=loose))


def _matches(nfa: Nfa, text: str) -> bool:
    state = nfa.start
    for character in text:
        state = nfa.step(state, ord(character))
    return nfa.end in state


def _worked_out(texts: Texts, excluded: tuple[str, ...]) -> TextLanguage:
    wanted = [
        searched(pattern, loose=reading is Reading.MAY_MATCH)
        for pattern, reading in texts.patterns
        if reading is not Reading.LACKS
    ]
    wanted += [FORMATS[name]() for name in texts.formats if name in FORMATS]
    unwanted = [
        searched(pattern, loose=True)
        for pattern, reading in texts.patterns
        if reading is Reading.LACKS
    ]
    if excluded:
        unwanted.append(choice(*map(literal, excluded)))
    if not wanted and not unwanted:
        return TextLanguage(low=texts.low, high=texts.high)
    texts, wanted = _with_lengths_inside(texts, wanted)
    bounded = texts.low > 0 or texts.high is not None
    if len(wanted) == 1 and not unwanted and not bounded:
        return TextLanguage(node=wanted[0])
    conditions: list[Condition] = [Expression(node) for node in wanted]
    conditions += [Expression(node, wanted=False) for node in unwanted]
    if bounded:
        conditions.append(Length(texts.low, texts.high))
    return TextLanguage(automaton=build_automaton(conditions))


def _with_lengths_inside(texts: Texts, wanted: list[Node]) -> tuple[Texts, list[Node]]:
    """Move the bounds of length into the single expression, if that is simple."""
    if len(wanted) != 1:
        return texts, wanted
    (node,) = wanted
    if isinstance(node, Repeat) and isinstance(node.node, Characters):
        high = min(
            inf if node.high is None else node.high, inf if texts.high is None else texts.high
        )
        low = max(node.low, texts.low)
        limit = None if high == inf else int(high)
        return Texts(), [NEVER if low > high else repeat(node.node, low, limit)]
    if texts.high is not None and texts.high > _MAX_COUNTED and longest(node) > texts.high:
        node = _shared_out(node, texts.high)
    if texts.high is not None and longest(node) <= texts.high:
        texts = replace(texts, high=None)
    if shortest(node) >= texts.low:
        texts = replace(texts, low=0)
    return texts, [node]


def _shared_out(node: Node, high: int) -> Node:
    """Divide the length among an expression's unbounded parts of one character each."""
    if isinstance(node, Choice):
        return choice(*(_shared_out(option, high) for option in node.options))
    parts = node.parts if isinstance(node, Sequence) else (node,)
    endless = [part for part in parts if longest(part) == inf]
    if not all(isinstance(part, Repeat) for part in endless):
        return node
    fixed = sum(longest(part) for part in parts if longest(part) < inf)
    spare = high - fixed - sum(shortest(part) for part in endless)
    if not endless or spare < 0:
        return node
    share = int(spare) // len(endless)
    return sequence(*(_limited(part, share) if part in endless else part for part in parts))


def _limited(part: Node, share: int) -> Node:
    assert isinstance(part, Repeat)
    most = longest(part.node)
    if most == inf or part.high is not None:
        return part
    return repeat(part.node, part.low, int((shortest(part) + share) // most))
