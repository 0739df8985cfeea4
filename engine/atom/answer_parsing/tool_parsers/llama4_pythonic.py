"""Calls as Llama 4 (and Llama 3.2's small models) write them, in Python's notation:

    [weather(city="Paris", days=3), time()]

Only a tool's name distinguishes a call from a list, so a list is parsed only if it begins with one,
and only literals are arguments (python_call.py). A call is reported once it has ended, since it is
not certain before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.markup_parser import Reading, TextEndedError
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
from atom.answer_parsing.object_calls import ObjectCallParser
from atom.answer_parsing.python_call import end_of_string, python_arguments
from atom.answer_parsing.tools import Tools

START, END = "<|python_start|>", "<|python_end|>"
MARKS = (START, END)
MOST_CALL_CHARS = 1 << 18
_SIGNS = re.compile(r"""["'()\[\]{}#]""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LIST = "["


class Llama4PythonicParser(ObjectCallParser):
    """A `CallParser` of one answer. closing: an optional mark after a list. separators: between
    calls."""

    marks: tuple[str, ...] = (START, _LIST)
    closing = END
    separators = ",; \t\r\n"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._openings = tuple(
            f"{space}{name}(" for name in tools for space in ("", "functions.")
        )  # fmt: skip

    def _call(self, mark: str) -> Reading[bool]:
        if not self._openings:
            return False
        yield from self._blanks()
        listed = mark == _LIST or bool((yield from self._one_of(_LIST)))
        if mark != _LIST and (yield from self._blanks()) == "{":
            self._at = len(mark)
            return (yield from self._objects())
        yield from self._blanks()
        if not (yield from self._one_call()):
            return False
        self._owe(self.closing)
        while True:
            end = self._at
            yield from self._blanks(self.separators)
            if not (yield from self._one_call()):
                self._take_back(end)
                break
        yield from self._blanks()
        if listed and (yield from self._one_of("]")):
            end = self._at
            yield from self._blanks()
        if (yield from self._one_of(self.closing)):
            self._owe()
            yield from self._pass_again(self.closing)
        else:
            self._at = max(end, 0)
        return True

    def _one_call(self) -> Reading[bool]:
        """Read a call; return whether there is one. The text of another expression is skipped."""
        start = self._at
        opening = yield from self._one_of(*self._openings)
        if not opening:
            return False
        name = known_name(opening[:-1], self._tools)
        try:
            if not (yield from self._closed()):
                return False
        except TextEndedError:
            self._take_unfinished(name, start + len(opening))
            raise
        written = self._text[start + len(opening) : self._at - 1]
        arguments = python_arguments(written, self._tools[name])
        if arguments is None:
            return False
        self._give(name, arguments)
        self._end_call()
        return True

    def _give(self, name: str, arguments: dict[str, Any]) -> None:
        self._begin_call(name)
        self._found.arguments(json.dumps(arguments, ensure_ascii=False))

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
        """Scan to the end of the text, or to the bracket that closes the call."""
        while self._open and self._at < len(self._text):
            if self._quote:
                place = self._at
                self._at, ended = end_of_string(self._text, place, self._quote, whole=self._over)
                if not ended:
                    return
                self._quote = ""
                continue
            sign = _SIGNS.search(self._text, self._at)
            if sign is None:
                self._at = len(self._text)
            elif not self._take(sign[0], sign.start()):
                self._at = sign.start()
                return

    def _take(self, sign: str, place: int) -> bool:
        """Take the sign; return False if more text is needed for it."""
        self._at = place + 1
        if sign == "#":
            end = self._text.find("\n", place)
            self._at = end + 1 if end >= 0 else len(self._text)
            return end >= 0 or self._over
        if sign in "\"'":
            ahead = self._text[place : place + 3]
            if ahead == sign * 3:
                self._quote, self._at = ahead, place + 3
            elif len(ahead) < 3 and ahead == sign * len(ahead) and not self._over:
                return False
            else:
                self._quote = sign
        elif sign in _CLOSING:
            self._open.append(sign)
        else:
            self._open.pop()
        return True

    def _take_unfinished(self, name: str, start: int) -> None:
        """Take a call that the answer's end cuts off: closed if the model ended the answer, else
        with its complete arguments only. If none of it can be parsed, it stays text."""
        written = self._text[start:].rstrip()
        schema = self._tools[name]
        if self._ended:
            for ending in self._endings(written):
                arguments = python_arguments(ending, schema)
                if arguments is not None and (arguments or not ending.strip()):
                    self._give(name, arguments)
                    return
        whole = _whole_arguments(written, schema)
        if whole:
            self._begin_call(name)
            self._found.arguments(json.dumps(whole, ensure_ascii=False)[:-1])
            if self._ended:
                self._found.arguments("}")

    def _endings(self, written: str) -> list[str]:
        """Return the arguments' text with the closing characters that it may lack."""
        closing = self._quote + "".join(_CLOSING[sign] for sign in reversed(self._open[1:]))
        before = written.partition(self.closing)[0].rstrip() if self.closing else written
        inner = before.removesuffix("]").rstrip().removesuffix(")")
        marked = self._quote and before != written
        return [*([inner + closing] if marked else []), written + closing]


def _whole_arguments(written: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments before the last comma after which the text can be dropped."""
    for comma in reversed([match.start() for match in re.finditer(",", written)][-64:]):
        found = python_arguments(written[:comma], schema)
        if found is not None:
            return found
    return {}


def keyword_values(arguments: Any, place: int) -> str:
    """Write arguments as Python does, with texts in the quotes that models prefer."""
    return ", ".join(f"{key}={_literal(value)}" for key, value in as_object(arguments).items())


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_literal(str(key))}: {_literal(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return repr(value)


def keywords(schema: Mapping[str, Any]) -> Format:
    """Write the arguments of a call, required ones first. Raises ValueError for a property that is
    not a Python identifier."""
    properties = schema.get("properties") or {}
    for key in properties:
        if not key.isidentifier():
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
    }:  # Python's spelling, which JSON does not have
        value = one_of(value, text("True"), text("False"))
    return sequence(text(f"{key}="), value)
