"""Events that parsers find in an answer, in the order of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model wrote to itself before it answered."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins; its arguments follow. index: among the answer's calls, from 0. id: that
    the model gave it, empty where its family writes none."""

    index: int
    name: str
    id: str = ""


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Content | CallStart | CallArguments | Reasoning


class CallParser(Protocol):
    """Turn text into content and calls. Text that only resembles a call is content, unchanged;
    blanks beside calls are dropped."""

    def feed(self, piece: str) -> Sequence[Event]:
        """Parse a piece of text; return the events that no later text can change."""
        ...

    def finish(self, *, ended: bool) -> Sequence[Event]:
        """Return the events of the text that was held back. No text may be fed afterwards. ended:
        the answer was not cut, so the parser closes an incomplete last call."""
        ...

    @property
    def within_call(self) -> bool:
        """Return whether a call has begun and not ended."""
        ...
