"""ObjectCallParser: calls that are JSON objects after a mark, alone or in a list.

    MARK {"name": "weather", "arguments": {"city": "Paris"}} CLOSING
    MARK [{"name": "weather", "arguments": {"city": "Paris"}}, …] CLOSING

Models mix the two, and write fences, brackets and separators around and between the objects. The
families define the mark and the closing text, if any (tool_parsers).
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.call_object import CallObject
from atom.answer_parsing.json_value import JsonValue
from atom.answer_parsing.markup_parser import (
    BLANKS,
    FENCE,
    TOO_MANY,
    MarkedCallParser,
    Reading,
    TextEndedError,
)

_BETWEEN = BLANKS + ",;[}]"


class ObjectCallParser(MarkedCallParser):
    """A `CallParser` of one answer. closing: after the calls, "" for none. bare: no mark
    distinguishes a call from another object."""

    closing: ClassVar[str] = ""
    bare: ClassVar[bool] = False

    def _call(self, mark: str) -> Reading[bool]:
        return (yield from self._objects())

    def _objects(self) -> Reading[bool]:
        """Read calls and the text around them; return whether there is a call."""
        yield from self._blanks()
        fenced = yield from self._pass_fence()
        listed = (yield from self._blanks()) == "["
        self._at += listed
        if (yield from self._blanks()) != "{" or not (yield from self._object()):
            return False
        self._owe(*filter(None, (self.closing,)))
        while True:
            end = self._at
            yield from self._blanks(TOO_MANY if listed or self.closing else BLANKS + "}")
            if fenced:
                yield from self._one_of(FENCE)
                yield from self._blanks()
            if self.closing and (yield from self._one_of(self.closing)):
                self._owe()
                yield from self._pass_again(self.closing)
                return True
            if not (yield from self._another()):
                # A bracket or a fence belongs to the call, blanks and separators do not.
                self._at = max(end, self._at)
                return True

    def _another(self) -> Reading[bool]:
        """Read one more call; return whether there is one. An object that is not a call, before the
        closing mark, is skipped as a mistake."""
        at = self._at
        sign = yield from self._blanks(_BETWEEN)
        if sign == "{":
            if (yield from self._object()):
                return True
            self._take_back(at)
            if self.closing:
                yield from self._blanks(_BETWEEN)
                value = JsonValue("{")
                while not value.over:
                    self._at, _ = value.feed(self._text, self._at)
                    if not value.over:
                        yield from self._more()
                end = self._at
                yield from self._blanks(TOO_MANY)
                if (yield from self._one_of(self.closing)):
                    self._owe()
                    end, at = self._at, self._at
                self._at = end
        self._take_back(at)
        return False

    def _object(self) -> Reading[bool]:
        """Read an object; return whether it is a call. The text of another object is skipped."""
        call = CallObject(self._tools, bare=self.bare)
        position = self._at
        while True:
            position = self._found.follow(call, self._text, position)
            if call.name:
                self._in_call, self._at, position = True, position, 0
                self._decide()
            if call.complete or call.failed:
                break
            try:
                yield from self._more()
            except TextEndedError:
                if self._ended and call.name:
                    self._found.give_up(call, self._text)
                raise
        if call.name:
            self._end_call()
        else:
            self._at = position
        return bool(call.name)
