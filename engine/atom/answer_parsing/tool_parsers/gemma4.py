"""Calls as Gemma 4 writes them, in a notation of its own whose strings stand between tokens:

    <|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Within objects and lists strings are written so too, and keys without quotes; JSON is read there as
well, which a forced call has.
"""

from __future__ import annotations

import json
from typing import Any

from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.markup_parser import BLANKS, MarkedCallParser, Reading, TextEndedError
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS

CALL, NAME, CALL_END, QUOTE = "<|tool_call>", "call:", "<tool_call|>", '<|"|>'
MARKS = (CALL, CALL_END, QUOTE)
_WORDS = {"true": True, "false": False, "null": None, "None": None}
_BETWEEN = f"{BLANKS},"
_MOST_DEPTH = 64


class Gemma4Parser(MarkedCallParser):
    """A `CallParser` of one answer."""

    marks = (CALL,)

    def _call(self, mark: str) -> Reading[bool]:
        if not (yield from self._one_of(NAME)):
            return False
        found = yield from self._name("{")
        if found is None or not found[0]:
            return False
        self._begin_call(found[0])
        first = True
        try:
            while (yield from self._argument(first=first)):
                first = False
        except TextEndedError:
            if self._ended:
                self._found.arguments("}" if self._found.has_arguments else "{}")
            raise
        self._found.arguments("{}" if first else "}")
        self._end_call()
        yield from self._one_of(CALL_END)
        return True

    def _argument(self, *, first: bool) -> Reading[bool]:
        """Read a key and its value; whether there was one."""
        yield from self._blanks(_BETWEEN)
        if (yield from self._one_of("}", "]")):
            return False
        key = yield from self._key()
        if key is None:  # what is no argument belongs to the call all the same
            yield from self._rest_up_to(CALL_END)
            return False
        before = ("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        yield from self._blanks()
        if (yield from self._one_of(QUOTE)):
            self._found.arguments(before + '"')
            yield from self._string()
            self._found.arguments('"')
        else:
            value = yield from self._value(_MOST_DEPTH)
            self._found.arguments(before + json.dumps(value, ensure_ascii=False))
        self._decide()
        return True

    def _key(self) -> Reading[str | None]:
        """Pass a key and its colon. None for what is none."""
        quote = yield from self._one_of(QUOTE, '"')
        ends = (quote,) if quote else (":", ",", "}", "]")
        found = yield from self._up_to(*ends, most=MOST_KEY_CHARS)
        if found is None or found[1] in (",", "}", "]"):
            return None
        if quote:
            yield from self._blanks()
            yield from self._one_of(":")
        return found[0] if quote else found[0].strip()

    def _string(self) -> Reading[None]:
        """Hand a string on as it comes."""
        self._decide()
        while True:
            end = self._text.find(QUOTE)
            certain = len(self._text) - partial_length(self._text, QUOTE) if end < 0 else end
            self._found.arguments(json.dumps(self._text[:certain], ensure_ascii=False)[1:-1])
            self._text = self._text[certain:]
            if end >= 0:
                self._at = len(QUOTE)
                return
            try:
                yield from self._more()
            except TextEndedError:
                if self._ended:
                    self._found.arguments('"')
                raise

    def _value(self, depth: int) -> Reading[Any]:
        sign = yield from self._blanks()
        if (yield from self._one_of(QUOTE)):
            return (yield from self._rest_up_to(QUOTE))
        if sign == '"':
            return (yield from self._json_string())
        if sign not in "{[" or not depth:
            return (yield from self._word())
        self._at += 1
        members: list[tuple[str, Any]] = []
        while True:
            yield from self._blanks(_BETWEEN)
            if (yield from self._one_of("}", "]")):
                break
            key = (yield from self._key()) if sign == "{" else ""
            if key is not None:
                members.append((key, (yield from self._value(depth - 1))))
        return dict(members) if sign == "{" else [value for _, value in members]

    def _rest_up_to(self, end: str) -> Reading[str]:
        start = self._at
        while (place := self._text.find(end, self._at)) < 0:
            yield from self._more()
        self._at = place + len(end)
        return self._text[start:place]

    def _json_string(self) -> Reading[str]:
        start = self._at
        self._at += 1
        while True:
            yield from self._rest_up_to('"')
            written = self._text[start : self._at]
            backslashes = len(written[:-1]) - len(written[:-1].rstrip("\\"))
            if backslashes % 2 == 0:
                break
        try:
            found: str = json.loads(written, strict=False)
        except ValueError:  # an escape that JSON does not know
            found = written[1:-1]
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _word(self) -> Reading[Any]:
        """Read a number, one of the words, or a string without its marks."""
        start = self._at
        while True:
            ends = [at for sign in ",}]" if (at := self._text.find(sign, start)) >= 0]
            if ends:
                break
            yield from self._more()
        self._at = min(ends)
        written = self._text[start : self._at].strip()
        if written in _WORDS:
            return _WORDS[written]
        try:
            return json.loads(written, parse_constant=str)
        except ValueError:
            return written
