"""Calls as Llama 4 (and Llama 3.2's small models) write them, in Python's notation:

    [weather(city="Paris", days=3), time()]

Nothing but a tool's name tells a call from a list, so only a list that begins with one is taken,
and only literals are arguments. A call is told once it has ended: until then it may be no Python.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.markup_parser import MarkedCallParser, Reading, TextEndedError
from atom.answer_parsing.notation import (
    ANNOTATIONS,
    Format,
    argument_value,
    as_object,
    in_turn,
    one_of,
    sequence,
    text,
)
from atom.answer_parsing.tools import Tools

START, END = "<|python_start|>", "<|python_end|>"
MARKS = (START, END)
MOST_CALL_CHARS = 1 << 16
_SIGNS = re.compile(r"""["'()\[\]{}#]""")
_WORDS = {"true": True, "false": False, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\n\\'\"abfnrtvxuUN01234567"


class Llama4PythonicParser(MarkedCallParser):
    """A `CallParser` of one answer. opening, closing: what may stand around a list."""

    marks: tuple[str, ...] = (START, "[")
    opening, closing = START, END

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._openings = tuple(f"{name}(" for name in tools)

    def _call(self, mark: str) -> Reading[bool]:
        if not self._openings:
            return False
        if mark == self.opening:
            yield from self._blanks()
            if not (yield from self._one_of("[")):
                return False
        called = False
        while True:
            yield from self._blanks()
            if not (yield from self._one_call()):
                if called:
                    self._at = 0
                return called
            called = True
            yield from self._blanks()
            if (yield from self._one_of(",", "]")) != ",":
                break
        end = self._at
        yield from self._blanks()
        if not (yield from self._one_of(self.closing)):
            self._at = end
        return True

    def _one_call(self) -> Reading[bool]:
        start = self._at
        opening = yield from self._one_of(*self._openings)
        if not opening:
            return False
        name = opening[:-1]
        try:
            if not (yield from self._closed()):
                return False
        except TextEndedError:
            self._take_unfinished(name, start + len(opening))
            raise
        arguments = _arguments(self._text[start + len(name) : self._at])
        if arguments is None:
            return False
        self._begin_call(name)
        self._found.arguments(json.dumps(arguments, ensure_ascii=False))
        self._end_call()
        return True

    def _closed(self) -> Reading[bool]:
        """Pass everything up to the bracket that closes the one before; whether there is one."""
        self._open = ["("]
        self._quote = ""
        start = self._at
        while self._open:
            self._scan()
            if self._open:
                if len(self._text) - start > MOST_CALL_CHARS:
                    return False
                yield from self._more()
        return True

    def _scan(self) -> None:
        while self._open and self._at < len(self._text):
            if self._quote:
                if not self._pass_text():
                    return
                continue
            sign = _SIGNS.search(self._text, self._at)
            if sign is None:
                self._at = len(self._text)
                return
            self._at = sign.end()
            if sign[0] in "\"'":
                self._quote = sign[0]
            elif sign[0] in _CLOSING:
                self._open.append(sign[0])
            elif sign[0] != "#":
                self._open.pop()

    def _pass_text(self) -> bool:
        """Tell whether the text ends that was begun."""
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign == "\\":
                if self._at + 1 == len(self._text):
                    return False
                self._at += 1
            self._at += 1
            if sign == self._quote:
                self._quote = ""
                return True
        return False

    def _take_unfinished(self, name: str, start: int) -> None:
        """A call that the answer's end cuts off: closed where the model ended it, else as far as
        its arguments are whole."""
        written = self._text[start:].rstrip()
        if self._ended:
            closing = "".join(_CLOSING[sign] for sign in reversed(self._open))
            arguments = _arguments("(" + written + self._quote + closing)
            if arguments is not None:
                self._begin_call(name)
                self._found.arguments(json.dumps(arguments, ensure_ascii=False))
                return
        self._begin_call(name)
        whole = _whole_arguments(written)
        self._found.arguments(json.dumps(whole, ensure_ascii=False)[:-1])


def _whole_arguments(written: str) -> dict[str, Any]:
    """Keep the arguments before the last comma behind which the text can be left out."""
    for comma in reversed([match.start() for match in re.finditer(",", written)][-256:]):
        found = _arguments("(" + written[:comma] + ")")
        if found is not None:
            return found
    return {}


def _arguments(call: str) -> dict[str, Any] | None:
    """Parse what stands between a call's brackets; None for what is more than keywords and
    literals."""
    try:
        parsed = ast.parse("f" + _ESCAPED.sub(_known_escape, call), mode="eval").body
        if not isinstance(parsed, ast.Call) or parsed.args or not isinstance(parsed.func, ast.Name):
            return None
        found = {word.arg: _value(word.value) for word in parsed.keywords if word.arg is not None}
        if len(found) < len(parsed.keywords):
            return None
        json.dumps(found, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return found


def _known_escape(found: re.Match[str]) -> str:
    """Write an escape that Python does not know, such as JSON's of a slash, as one it does."""
    if found[1] in _ESCAPES:
        return found[0]
    return "/" if found[1] == "/" else "\\\\" + found[1]


def _value(node: ast.expr) -> Any:
    """Raises ValueError for what is no literal of JSON's kinds."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else ast.literal_eval(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("keys of objects are texts")
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no literal of JSON's kinds")
    if isinstance(value, str):  # characters that JSON's escapes write as two
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def keyword_values(arguments: Any, place: int) -> str:
    """Write arguments as Python does."""
    return ", ".join(f"{key}={value!r}" for key, value in as_object(arguments).items())


def keywords(schema: Mapping[str, Any]) -> Format:
    """The arguments of a call, those that are required first. Raises ValueError for a name that
    Python does not know as one."""
    properties = schema.get("properties") or {}
    for key in properties:
        if not key.isidentifier() or keyword.iskeyword(key):
            raise ValueError(
                f"the property {key!r} cannot be written as a keyword argument, which is how this "
                f"model calls tools; rename it"
            )
    return in_turn(schema, _keyword, ", ")


def _keyword(schema: Mapping[str, Any], key: str) -> Format:
    value = argument_value(schema, key, bare=False)
    plain = set(schema["properties"][key]) <= ANNOTATIONS
    if plain and argument_types(schema, key) == {
        "boolean"
    }:  # as Python says it, which JSON does not
        value = one_of(value, text("True"), text("False"))
    return sequence(text(f"{key}="), value)
