"""What parsers find in an answer, in the order of its text."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model wrote to itself before it answered."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins; its arguments follow. index: among the answer's calls, from 0."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


CallEvent = Content | CallStart | CallArguments
Event = CallEvent | Reasoning


class CallParser(Protocol):
    """Turns text into content and calls. What only looks like a call is content, to the entry;
    blanks beside calls are dropped."""

    def feed(self, piece: str) -> list[CallEvent]:
        """What is certain now."""
        ...

    def finish(self, *, ended: bool) -> list[CallEvent]:
        """Give what was held back; nothing is fed afterwards. ended: the answer was not cut, so
        that what its last call lacks is added."""
        ...

    @property
    def within_call(self) -> bool:
        """Tell whether a call has begun and not ended."""
        ...
