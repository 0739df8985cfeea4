"""Calls as Gemma 4 writes them, in a notation whose strings are between tokens:

    <|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Objects and lists have the same strings, and keys without quotes; they may also be JSON, as in a
forced call.
"""

from __future__ import annotations

import json
from typing import Any

from atom.answer_parsing.argument_types import argument_types, only_string
from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.json_words import json_word
from atom.answer_parsing.markup_parser import BLANKS, MarkedCallParser, Reading, TextEndedError
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS

CALL, NAME, CALL_END, QUOTE = "<|tool_call>", "call:", "<tool_call|>", '<|"|>'
MARKS = (CALL, CALL_END, QUOTE)
_BETWEEN = f"{BLANKS},"
_CLOSING = ("}", "]", ")")
_WORD_ENDS = (",", "}", "]", CALL_END, QUOTE)
_MOST_DEPTH = 64


class Gemma4Parser(MarkedCallParser):
    """A `CallParser` of one answer."""

    marks = (CALL,)
    _round = False  # the brackets of the call, which models write as Python's now and then

    def _call(self, mark: str) -> Reading[bool]:
        yield from self._blanks()
        yield from self._one_of(NAME, ":")
        found = yield from self._name("{", "(", CALL_END, CALL)
        name = "" if found is None else known_name(found[0], self._tools)
        if found is None or not name or found[1] == CALL:
            return False
        self._tool, self._keys, self._round = name, 0, found[1] == "("
        if found[1] == CALL_END:
            self._at -= len(CALL_END)
        elif not (yield from self._arguments()):
            return False
        if not self._in_call:
            self._begin_call(name)
        self._found.arguments("}" if self._keys else "{}")
        self._end_call()
        self._owe(CALL_END)
        yield from self._blanks(BLANKS + "})")
        if (yield from self._one_of(CALL_END)):
            self._owe()
            yield from self._pass_again(CALL_END)
        return True

    def _arguments(self) -> Reading[bool]:
        """Read arguments up to the bracket that closes them; whether they can be read."""
        head_end = self._at
        try:
            while True:
                yield from self._blanks(_BETWEEN)
                if (yield from self._one_of(*_CLOSING)):
                    return True
                if not (yield from self._argument()):
                    # Text that is not an argument belongs to a call that has others.
                    if self._in_call:
                        yield from self._rest_up_to(CALL_END)
                        self._at -= len(CALL_END)
                    return self._in_call
        except TextEndedError:
            if self._ended and not self._in_call and not self._text[head_end:].strip(_BETWEEN):
                self._begin_call(self._tool)
            if self._ended and self._in_call:
                self._found.arguments("}" if self._keys else "{}")
            raise

    def _argument(self) -> Reading[bool]:
        """Read a key and its value; whether there was one."""
        key = yield from self._key()
        if key is None:
            return False
        before = ", " if self._keys else "{"
        before += json.dumps(key, ensure_ascii=False) + ": "
        yield from self._blanks()
        if (yield from self._one_of(QUOTE)):
            self._begin_argument(before + '"')
            yield from self._string()
            self._found.arguments('"')
        else:
            types = argument_types(self._tools.get(self._tool), key)
            value = yield from self._value(_MOST_DEPTH, as_text=only_string(types))
            self._begin_argument(before + json.dumps(value, ensure_ascii=False))
        self._decide()
        return True

    def _begin_argument(self, written: str) -> None:
        if not self._in_call:
            self._begin_call(self._tool)
        self._keys += 1
        self._found.arguments(written)

    def _key(self) -> Reading[str | None]:
        """Read a key and its colon; return None if the text is not a key."""
        quote = yield from self._one_of(QUOTE, '"', "'")
        ends = (quote,) if quote else (":", "=", ",", *_CLOSING, CALL_END)
        found = yield from self._up_to(*ends, most=MOST_KEY_CHARS)
        if found is None or not (quote or found[0].strip()):
            return None
        if quote:
            yield from self._blanks()
            return found[0] if (yield from self._one_of(":", "=")) else None
        return found[0].strip() if found[1] in (":", "=") else None

    def _string(self) -> Reading[None]:
        """Hand a string on as it comes."""
        self._decide()
        searched = 0
        while True:
            end = self._text.find(QUOTE, searched)
            cut = self._text.find(CALL_END, searched)
            if cut >= 0 and (cut < end or end < 0):
                if (yield from self._is_cut(cut)):
                    own = self._text[:cut].rstrip(BLANKS + "}]")
                    self._say(own)
                    self._at = len(own)
                    return
                searched = cut + 1
                continue
            held = max(partial_length(self._text, mark) for mark in (QUOTE, CALL_END))
            certain = len(self._text) - held if end < 0 else end
            if end < 0:  # brackets may belong to a call that ends here
                certain = len(self._text[:certain].rstrip(BLANKS + "}]"))
            self._say(self._text[:certain])
            self._text, searched = self._text[certain:], max(0, searched - certain)
            if end >= 0:
                self._at = len(QUOTE)
                return
            self._at = 0
            try:
                yield from self._more()
            except TextEndedError:
                if self._ended:
                    self._found.arguments('"')
                raise

    def _say(self, text: str) -> None:
        self._found.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _is_cut(self, place: int) -> Reading[bool]:
        """Return whether a call ends at `place` within a string whose closing mark is missing."""
        if not self._text[:place].rstrip(BLANKS).endswith("}"):
            return False
        self._at = place + len(CALL_END)
        try:
            yield from self._blanks()
            return bool((yield from self._one_of(CALL)))
        except TextEndedError:
            return True

    def _value(self, depth: int, *, as_text: bool = False) -> Reading[Any]:
        sign = yield from self._blanks()
        if (yield from self._one_of(QUOTE)):
            return (yield from self._rest_up_to(QUOTE))
        if sign in "\"'":
            return (yield from self._quoted_string(sign))
        if sign not in "{[" or not depth:
            return (yield from self._word(as_text=as_text))
        self._at += 1
        members: list[tuple[str, Any]] = []
        while True:
            yield from self._blanks(_BETWEEN)
            if (yield from self._one_of(*_CLOSING)):
                break
            if (yield from self._one_of(CALL_END)):  # the brackets were forgotten
                self._at -= len(CALL_END)
                break
            key = (yield from self._key()) if sign == "{" else ""
            if key is not None:
                members.append((key, (yield from self._value(depth - 1))))
        return dict(members) if sign == "{" else [value for _, value in members]

    def _rest_up_to(self, end: str) -> Reading[str]:
        start = searched = self._at
        while (place := self._text.find(end, searched)) < 0:
            searched = max(start, len(self._text) - len(end) + 1)
            yield from self._more()
        self._at = place + len(end)
        return self._text[start:place]

    def _quoted_string(self, quote: str) -> Reading[str]:
        start = self._at
        self._at += 1
        while True:
            yield from self._rest_up_to(quote)
            written = self._text[start : self._at]
            backslashes = len(written[:-1]) - len(written[:-1].rstrip("\\"))
            if backslashes % 2 == 0:
                break
        inner = written[1:-1]
        try:
            found: str = json.loads(written if quote == '"' else f'"{inner}"', strict=False)
        except ValueError:  # an escape that JSON does not know
            found = inner
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _word(self, *, as_text: bool) -> Reading[Any]:
        """Read a number, one of the words, or a string without its marks, or with one of them."""
        start = searched = self._at
        ends = (*_WORD_ENDS, ")") if self._round else _WORD_ENDS
        while True:
            places = [at for sign in ends if (at := self._text.find(sign, searched)) >= 0]
            held = max(partial_length(self._text, mark) for mark in (CALL_END, QUOTE))
            if places and (min(places) < len(self._text) - held):
                break
            searched = max(start, len(self._text) - held)
            try:
                yield from self._more()
            except TextEndedError:
                if not self._ended or not self._text[start:].strip():
                    raise
                places = [len(self._text)]
                break
        self._at = min(places)
        written = self._text[start : self._at].strip()
        if (yield from self._one_of(QUOTE)) or as_text:
            return written
        if not written and self._text.startswith((",", ")"), self._at):
            self._at += 1
        return json.loads(json_word(written)) if written else None
