"""Hermes' markup for calls, which Qwen's models write:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

any number of them, behind or between text. Between the marks any name is taken for a call; what is
no such object is text. A closing mark may be missing.
"""

from __future__ import annotations

from atom.answer_parsing.call_object import CallKeys
from atom.answer_parsing.call_scanner import CallScanner
from atom.answer_parsing.events import Event
from atom.answer_parsing.held_text import partial_length

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_KEYS = CallKeys(is_known=lambda name: True, others=None, needs_arguments=False)
_TOO_MANY = " \t\r\n}]"  # what models write between the object and the mark by mistake


class HermesParser(CallScanner):
    """A `CallParser` of one answer."""

    def __init__(self) -> None:
        super().__init__(_KEYS, begins_with=OPENING[0])

    def finish(self, *, ended: bool) -> list[Event]:
        if self._behind_call:  # a part of the closing mark, if anything
            self._text = ""
        return super().finish(ended=ended)

    def _seek(self) -> bool:
        return self._close() if self._behind_call else self._open()

    def _open(self) -> bool:
        before, mark, _ = self._text.partition(OPENING)
        if not mark:
            self._keep(len(before) - partial_length(before, OPENING))
            return False
        self._keep(len(before))
        self._begin(len(mark))
        return True

    def _close(self) -> bool:
        self._text = self._text.lstrip(_TOO_MANY)
        if CLOSING.startswith(self._text) and self._text != CLOSING:
            return False  # or nothing yet
        self._text = self._text.removeprefix(CLOSING)
        self._behind_call = False
        return True
