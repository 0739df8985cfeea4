"""Hermes' markup for calls, which Qwen's models write:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

any number of them, behind or between text. Between the marks any name is taken for a call; what is
no such object is text. A closing mark may be missing.
"""

from __future__ import annotations

from atom.answer_parsing.call_object import CallKeys, CallObject
from atom.answer_parsing.events import CallEvent
from atom.answer_parsing.found_calls import FoundCalls
from atom.answer_parsing.held_text import partial_length

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_KEYS = CallKeys(is_known=lambda name: True, others=None, needs_arguments=False)
_TOO_MANY = " \t\r\n}]"  # what models write between the object and the mark by mistake


class HermesParser:
    """One answer's."""

    def __init__(self) -> None:
        self._found = FoundCalls()
        self._text = ""  # not decided on yet
        self._object: CallObject | None = None
        self._position = 0  # in the text, of the object
        self._closing = False  # behind a complete object

    def feed(self, piece: str) -> list[CallEvent]:
        plain = "<" not in piece and not (self._text or self._object or self._closing)
        if plain:
            self._found.content(piece)
            return self._found.take()
        self._text += piece
        while self._step():
            pass
        return self._found.take()

    def finish(self) -> list[CallEvent]:
        if not self._closing:
            self._found.content(self._text)
        return self._found.end()

    def _step(self) -> bool:
        """Whether there may be more to do."""
        if self._object is not None:
            return self._follow(self._object)
        if self._closing:
            return self._close()
        return self._open()

    def _open(self) -> bool:
        before, mark, behind = self._text.partition(OPENING)
        if mark:
            self._found.content(before)
            self._text = mark + behind
            self._object, self._position = CallObject(_KEYS), len(mark)
            return True
        certain = len(before) - partial_length(before, OPENING)
        self._found.content(before[:certain])
        self._text = before[certain:]
        return False

    def _follow(self, call: CallObject) -> bool:
        self._position = self._found.follow(call, self._text, self._position)
        if call.failed and not call.name:
            self._found.content(self._text[: self._position])
        if call.failed or call.name:
            self._text, self._position = self._text[self._position :], 0
        if not (call.complete or call.failed):
            return False
        self._object, self._closing = None, call.complete
        return True

    def _close(self) -> bool:
        self._text = self._text.lstrip(_TOO_MANY)
        if CLOSING.startswith(self._text) and self._text != CLOSING:
            return False  # or nothing yet
        self._text = self._text.removeprefix(CLOSING)
        self._closing = False
        return True
