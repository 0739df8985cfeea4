"""ListedCallParser: calls that are objects of a JSON list, behind a mark.

    MARK [{"name": "weather", "arguments": {"city": "Paris"}}, …] CLOSING

The mark and what closes the list, if anything, are the families' (tool_parsers).
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.call_object import CallKeys, CallObject
from atom.answer_parsing.markup_parser import MarkedCallParser, Reading, TextEndedError

_KEYS = CallKeys(is_known=lambda name: True, others=None, needs_arguments=False)


class ListedCallParser(MarkedCallParser):
    """A `CallParser` of one answer. closing: behind the list, "" for nothing."""

    closing: ClassVar[str] = ""

    def _call(self, mark: str) -> Reading[bool]:
        if (yield from self._blanks()) != "[":
            return False
        self._at += 1
        if not (yield from self._listed()):
            return False
        if self.closing:
            end = self._at
            yield from self._blanks()
            if not (yield from self._one_of(self.closing)):
                self._at = end
        return True

    def _listed(self) -> Reading[bool]:
        """Read objects between brackets, the first of which was passed."""
        yield from self._blanks()
        if not (yield from self._object()):
            return False
        while True:
            yield from self._blanks()
            found = yield from self._one_of(",", "]")
            if found != ",":
                return True
            if (yield from self._blanks()) != "{":
                return True
            if not (yield from self._object()):
                return True

    def _object(self) -> Reading[bool]:
        """Tell whether one stands here that is a call."""
        call = CallObject(_KEYS)
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
                    self._found.give_up(call)
                raise
        called = bool(call.name)
        if called:
            self._end_call()
        return called
