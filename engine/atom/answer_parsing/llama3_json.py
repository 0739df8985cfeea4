"""Calls as Llama 3.1 and later write them: bare objects, one or several with semicolons between.

    {"name": "weather", "parameters": {"city": "Paris"}}; {"name": "time", "parameters": {}}

The mark <|python_tag|> may stand before one; usually it is a special token and no text at all.
There being nothing else to tell a call from an object that was asked for, an object is one only if
it has a tool's name, parameters (or arguments) and nothing else but a type.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from atom.answer_parsing.call_object import CallKeys, CallObject
from atom.answer_parsing.events import CallEvent
from atom.answer_parsing.found_calls import FoundCalls
from atom.answer_parsing.held_text import partial_length

MARK = "<|python_tag|>"
# A mark with an object behind it; of an object the next character is looked at, if it is there.
_BEGIN = re.compile(r"(?:<\|python_tag\|>\s{0,8})?\{(?=[\"\s]|\Z)")
_MARK_AT_END = re.compile(r"<\|python_tag\|>\s{0,8}\Z")
_BETWEEN = re.compile(r"[;\s]+")


class Llama3JsonParser:
    """One answer's. tools: their names."""

    def __init__(self, tools: Collection[str]) -> None:
        names = frozenset(tools)
        self._keys = CallKeys(
            is_known=names.__contains__, others=frozenset({"type"}), needs_arguments=True
        )
        self._found = FoundCalls()
        self._text = ""  # not decided on yet
        self._object: CallObject | None = None
        self._position = 0  # in the text, of the object
        self._behind_call = False

    def feed(self, piece: str) -> list[CallEvent]:
        decided = not (self._text or self._object or self._behind_call)
        if decided and "{" not in piece and "<" not in piece:
            self._found.content(piece)
            return self._found.take()
        self._text += piece
        while self._step():
            pass
        return self._found.take()

    def finish(self) -> list[CallEvent]:
        self._found.content(self._text)
        return self._found.end()

    def _step(self) -> bool:
        """Whether there may be more to do."""
        if self._object is not None:
            return self._follow(self._object)
        if self._behind_call:
            self._pass_separators()
        begin = _BEGIN.search(self._text)
        if begin is None:
            self._keep(self._possible_mark())
            return False
        self._keep(begin.start())
        mark = len(begin[0]) - 1
        self._object, self._position = CallObject(self._keys), mark
        return True

    def _pass_separators(self) -> None:
        between = _BETWEEN.match(self._text)
        if between is not None:
            self._found.separator(between[0])
            self._text = self._text[between.end() :]
        self._behind_call = not self._text

    def _possible_mark(self) -> int:
        """Where text begins that may become the mark before an object."""
        whole = _MARK_AT_END.search(self._text)
        if whole is not None:
            return whole.start()
        return len(self._text) - partial_length(self._text, MARK)

    def _keep(self, position: int) -> None:
        """What is before is content."""
        self._found.content(self._text[:position])
        self._text = self._text[position:]

    def _follow(self, call: CallObject) -> bool:
        self._position = self._found.follow(call, self._text, self._position)
        if call.failed and not call.name:
            self._found.content(self._text[: self._position])
        if call.failed or call.name:
            self._text, self._position = self._text[self._position :], 0
        if not (call.complete or call.failed):
            return False
        self._object, self._behind_call = None, call.complete
        return True
