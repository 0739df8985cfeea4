"""CallScanner: text that comes in pieces, and calls as objects in it.

What parsers of families have in common: text that is not decided on yet, the object that it is in,
and the events found. Where an object may begin, and what belongs to the call behind it, they know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from atom.answer_parsing.call_object import CallKeys, CallObject
from atom.answer_parsing.events import Event
from atom.answer_parsing.found_calls import FoundCalls


class CallScanner(ABC):
    """A `CallParser` of one answer."""

    def __init__(self, keys: CallKeys, begins_with: str) -> None:
        """begins_with: the characters of which what comes before an object, or its own first, is
        one."""
        self._keys = keys
        self._begins_with = begins_with
        self._found = FoundCalls()
        self._text = ""  # not decided on yet
        self._object: CallObject | None = None
        self._position = 0  # in the text, of the object
        self._behind_call = False

    def feed(self, piece: str) -> list[Event]:
        undecided = self._text or self._object or self._behind_call
        if not undecided and not any(sign in piece for sign in self._begins_with):
            self._found.content(piece)
            return self._found.take()
        self._text += piece
        while self._step():
            pass
        return self._found.take()

    @property
    def within_call(self) -> bool:
        """Tell whether an object has begun and not ended."""
        return self._object is not None

    def finish(self, *, ended: bool) -> list[Event]:
        if ended and self._object is not None and self._object.name:
            self._found.give_up(self._object)
        self._found.content(self._text)
        return self._found.end()

    def _step(self) -> bool:
        """Tell whether there may be more to do."""
        return self._seek() if self._object is None else self._follow(self._object)

    @abstractmethod
    def _seek(self) -> bool:
        """Look for the next object's beginning, outside of any; whether there may be more to do."""

    def _keep(self, position: int) -> None:
        """Keep what is before as content."""
        self._found.content(self._text[:position])
        self._text = self._text[position:]

    def _begin(self, position: int) -> None:
        """An object begins there. Should it be no call, all of the text is content."""
        self._object, self._position = CallObject(self._keys), position

    def _follow(self, call: CallObject) -> bool:
        self._position = self._found.follow(call, self._text, self._position)
        if call.failed and not call.name:
            self._found.content(self._text[: self._position])
        if call.failed or call.name:
            self._text, self._position = self._text[self._position :], 0
        if not (call.complete or call.failed):
            return False
        self._object, self._behind_call = None, call.complete or bool(call.name)
        return True
