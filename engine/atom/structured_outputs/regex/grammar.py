"""Write languages of texts as a grammar: verbatim (TEXT) or as JSON strings (JSON).

A JSON string holds a quotation mark, a backslash or a control character only as an escape: each
character of the value has the one spelling of JSON's writers. Pure.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from atom.structured_outputs.grammar_writer import GrammarWriter, counted, one_of, quoted
from atom.structured_outputs.regex.automaton import Automaton
from atom.structured_outputs.regex.character_set import CharacterSet, of_ranges, of_text
from atom.structured_outputs.regex.syntax import (
    Anchor,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
)

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_CONTROLS = of_ranges([(0, 31)])
_ESCAPED = _CONTROLS | of_text('"\\')
_LONG = _CONTROLS - of_text("\b\f\n\r\t")
_NUL = of_ranges([(0, 0)])
_MAX_INLINED = 40
_MOST_ESCAPED = 32
_UTF8_LENGTHS = (0x800, 0x10000)


class Encoding(Enum):
    TEXT = "text"
    JSON = "json"


def expression(node: Node, encoding: Encoding) -> str:
    """Write an expression without anchors as one element of the grammar."""
    match node:
        case Characters():
            return characters(node.allowed, encoding)
        case Sequence():
            parts = _sequence(node, encoding)
            return parts[0] if len(parts) == 1 else "(" + " ".join(parts) + ")"
        case Choice():
            return one_of([expression(option, encoding) for option in node.options])
        case Repeat():
            return _repeated(node, encoding)
        case Anchor():
            raise AssertionError("anchors are worked out before")


def _repeated(node: Repeat, encoding: Encoding) -> str:
    if isinstance(node.node, Characters) and max(node.low, node.high or 0) > 1:
        allowed = node.node.allowed
        if node.high is not None:
            return counted_characters(allowed, node.low, node.high, encoding)
        first = counted_characters(allowed, node.low, node.low, encoding)
        return f"({first} {characters(allowed, encoding)}*)"
    inner = expression(node.node, encoding)
    if isinstance(node.node, Repeat):
        inner = f"({inner})"
    return counted(inner, node.low, node.high)


def counted_characters(allowed: CharacterSet, low: int, high: int, encoding: Encoding) -> str:
    """Write low to high characters of a set as an expression of xgrammar's, which it matches
    without a rule for each character; with counted rules a mask takes it seconds.

    If many characters may come, characters that JSON escapes are excluded, unless the set has no
    others.
    """
    plain = allowed - (_ESCAPED if encoding is Encoding.JSON else _NUL)
    if not plain or high <= 1:
        return counted(characters(allowed, encoding), low, high)
    one = _in_regex(plain)
    if encoding is Encoding.JSON and high <= _MOST_ESCAPED and plain != allowed:
        short = "".join(entry for of, entry in _SHORT.items() if ord(of) in allowed)
        one = f"({one}|\\\\{_in_regex(of_text(short))})" if short else one
    return f"Regex({quoted(f'{one}{{{low},{high}}}')})"


def _sequence(node: Sequence, encoding: Encoding) -> list[str]:
    """Write a sequence; adjacent single characters become one literal."""
    found, run = [], ""
    for part in (*node.parts, None):
        only = part.allowed.only if isinstance(part, Characters) else None
        if only is not None:
            run += chr(only)
            continue
        if run:
            found.append(literal(run, encoding))
            run = ""
        if part is not None:
            found.append(expression(part, encoding))
    return found or ['""']


def literal(text: str, encoding: Encoding) -> str:
    """Write a literal of the grammar."""
    return quoted(text if encoding is Encoding.TEXT else quoted(text)[1:-1])


def characters(allowed: CharacterSet, encoding: Encoding) -> str:
    """Write one character of a set as an element of the grammar."""
    if allowed.only is not None:
        return literal(chr(allowed.only), encoding)
    if encoding is Encoding.TEXT:
        return _class((allowed - _NUL) or allowed)
    options = []
    plain = allowed - _ESCAPED
    if plain:
        options.append(_class(plain))
    short = "".join(entry for of, entry in _SHORT.items() if ord(of) in allowed)
    if short:
        options.append(f'"\\\\" {_class(of_text(short))}')
    for high in (0, 1):
        digits = [code for code in range(16) if high * 16 + code in (allowed & _LONG)]
        if digits:
            options.append(f'"\\\\u00{high}" {_class(of_text("".join(f"{d:x}" for d in digits)))}')
    return options[0] if len(options) == 1 and plain else "(" + " | ".join(options) + ")"


def _class(allowed: CharacterSet) -> str:
    parts = []
    for first, last in allowed.ranges:
        parts.append(_code(first))
        if last > first:
            parts.append(("" if last == first + 1 else "-") + _code(last))
    return "[" + "".join(parts) + "]"


def _in_regex(allowed: CharacterSet) -> str:
    """Write the class in xgrammar's expressions. These have no escape for characters past U+FFFF,
    and misread a range between lengths of UTF-8, so U+07FF and U+FFFF are left out as gaps in
    it."""
    parts = []
    for first, last in allowed.ranges:
        starts = [first, *(start for start in _UTF8_LENGTHS if first < start <= last)]
        for start, behind in pairwise([*starts, last + 1]):
            end = behind - 1 - (behind <= last)
            if start <= end:
                parts.append(_regex_code(start) + "-" + _regex_code(end))
    return "[" + "".join(parts) + "]"


def _regex_code(code: int) -> str:
    return _code(code) if code < 0x10000 else chr(code)


def _code(code: int) -> str:
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def automaton_expression(
    automaton: Automaton, encoding: Encoding, writer: GrammarWriter, closing: str
) -> str:
    """Write an automaton as an element of the grammar; closing: the literal after each text, so
    that a rule ends with the text."""
    return _States(automaton, encoding, writer, closing).element(0, 0)


class _States:
    """Rules for the states that are reached from several others; the other states are written
    inline."""

    def __init__(
        self, automaton: Automaton, encoding: Encoding, writer: GrammarWriter, closing: str
    ) -> None:
        self._automaton = automaton
        self._encoding = encoding
        self._writer = writer
        self._closing = quoted(closing)
        self._names: dict[int, str] = {}
        reached = [to for at, moves in enumerate(automaton.moves) for to in moves if to != at]
        self._shared = {to for to in reached if reached.count(to) > 1}

    def element(self, state: int, depth: int) -> str:
        if state not in self._shared and depth < _MAX_INLINED:
            return self._body(state, depth + 1)
        if state not in self._names:
            self._names[state] = name = self._writer.reserve("s")
            self._writer.write(name, self._body(state, 0))
        return self._names[state]

    def _body(self, state: int, depth: int) -> str:
        moves = self._automaton.moves[state]
        options = [
            f"{characters(allowed, self._encoding)} {self.element(target, depth)}"
            for target, allowed in moves.items()
            if target != state
        ]
        if state in self._automaton.accepting:
            options.append(self._closing)
        rest = options[0] if len(options) == 1 else "(" + " | ".join(options) + ")"
        if state not in moves:
            return f"({rest})"
        return f"({characters(moves[state], self._encoding)}* {rest})"
