"""ParameterParser: calls whose arguments stand one by one between marks, in XML's manner.

Nothing is escaped in such notations, so an end mark may stand inside a value. It ends the value
only where a mark follows that belongs there. Strings are handed on as they come, other values whole
once they have ended. Families say how their marks read (families/).
"""

from __future__ import annotations

import json
from abc import abstractmethod

from atom.answer_parsing.argument_types import json_of, only_string
from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.markup_parser import MarkedCallParser, Reading, TextEndedError

MOST_KEY_CHARS = 1024


class ParameterParser(MarkedCallParser):
    """A `CallParser` of one answer. value_end: behind each value; followers: one of which stands
    behind that, blanks between; lines: values stand on lines of their own."""

    value_end: str
    followers: tuple[str, ...]
    lines = False
    _searched = 0  # of the text: no value ends there

    def _parameters(self) -> Reading[None]:
        """Read the parameters of the call that has begun, and what closes it."""
        first = True
        try:
            while (yield from self._next_parameter(first=first)):
                first = False
        except TextEndedError:
            if self._ended and self._in_call:
                self._found.arguments("}" if self._found.has_arguments else "{}")
            raise
        self._found.arguments("{}" if first else "}")
        self._end_call()

    @abstractmethod
    def _next_parameter(self, *, first: bool) -> Reading[bool]:
        """Read one of them; whether there was one."""

    def _argument(self, key: str, types: frozenset[str], *, first: bool) -> Reading[None]:
        """Read the value that follows `key`."""
        before = ("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        self._decide()
        self._searched = 0
        if only_string(types):
            self._found.arguments(before + '"')
            yield from self._string_value()
            self._found.arguments('"')
        else:
            yield from self._other_value(before, types)
        self._decide()

    def _string_value(self) -> Reading[None]:
        if self.lines and (yield from self._sees_line()):
            self._at += 1
        self._decide()
        try:
            while True:
                end = yield from self._value_end()
                text = self._text[: end if end >= 0 else self._certain()]
                self._found.arguments(_escaped(text))
                self._text, self._searched = self._text[len(text) :], 0
                if end >= 0:
                    self._pass_end()
                    return
                yield from self._more()
        except TextEndedError:
            self._found.arguments(_escaped(self._without_lines(self._text)))
            if self._ended:
                self._found.arguments('"')
            raise

    def _other_value(self, before: str, types: frozenset[str]) -> Reading[None]:
        try:
            end = yield from self._value_end()
            while end < 0:
                yield from self._more()
                end = yield from self._value_end()
        except TextEndedError:
            if self._ended:
                self._found.arguments(before + json_of(self._without_lines(self._text), types))
            raise
        text = self._text[:end]
        if self.lines:
            text = text.removeprefix("\n")
        self._found.arguments(before + json_of(text, types))
        self._text = self._text[end:]
        self._pass_end()

    def _sees_line(self) -> Reading[bool]:
        while self._at == len(self._text):
            yield from self._more()
        return self._text[self._at] == "\n"

    def _value_end(self) -> Reading[int]:
        """Find where the value ends that the text begins with; -1 where that is not there yet."""
        place = self._text.find(self.value_end, self._searched)
        while place >= 0:
            self._at = place + len(self.value_end)
            try:
                yield from self._blanks()
                found = yield from self._one_of(*self.followers)
            except TextEndedError:
                found = self.value_end  # nothing stands behind it, or a part of a mark
            if found:
                return place - (self.lines and self._text[:place].endswith("\n"))
            self._searched = place + 1
            place = self._text.find(self.value_end, self._searched)
        self._at = 0
        self._searched = max(self._searched, len(self._text) - len(self.value_end))
        return -1

    def _certain(self) -> int:
        """Tell how many characters belong to the value whatever follows: end marks that are passed
        already are its own."""
        certain = len(self._text) - partial_length(self._text, self.value_end)
        return certain - (self.lines and self._text[:certain].endswith("\n"))

    def _without_lines(self, text: str) -> str:
        """A value that the answer's end cuts off, without a part of its end mark."""
        text = text[: len(text) - partial_length(text, self.value_end)]
        return text.strip("\n") if self.lines else text

    def _pass_end(self) -> None:
        """The text begins with what ends a value."""
        self._at = self._text.find(self.value_end) + len(self.value_end)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
