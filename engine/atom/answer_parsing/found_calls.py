"""FoundCalls: the findings of a call parser that it has not returned yet."""

from __future__ import annotations

from atom.answer_parsing.call_object import CallObject
from atom.answer_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from atom.answer_parsing.held_text import BlankHolder


class FoundCalls:
    """The findings in one answer: numbered calls, and content without the blanks that may turn out
    to be beside a call."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._blanks = BlankHolder()
        self._current: CallObject | None = None
        self._count = 0
        self._has_content = False
        self.has_arguments = False  # the call that has begun last

    @property
    def count(self) -> int:
        """Return the number of calls so far."""
        return self._count

    def content(self, text: str) -> None:
        shown = self._blanks.pass_on(text)
        if shown:
            if self._count and not self._has_content:
                shown = shown.lstrip()
            self._has_content = True
            self._events.append(Content(shown))

    def reasoning(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))

    def follow(self, call: CallObject, text: str, position: int) -> int:
        """Feed the object from this position on; the position up to which it read."""
        position = call.feed(text, position)
        if call.name:
            if call is not self._current:
                self._current = call
                self.begin(call.name)
            self._take_arguments(call)
        return position

    def begin(self, name: str, call_id: str = "") -> None:
        """Add the beginning of a call. call_id: the model's id of it."""
        self._blanks.drop()
        self._events.append(CallStart(self._count, name, call_id))
        self._count += 1
        self.has_arguments = False

    def arguments(self, text: str) -> None:
        """Add further arguments to the last call that has begun."""
        if text:
            self.has_arguments = True
            self._events.append(CallArguments(self._count - 1, text))

    def give_up(self, call: CallObject, rest: str) -> None:
        """Close the arguments of the current call: its text has ended. rest: text that the call did
        not read."""
        call.give_up(rest)
        self._take_arguments(call)

    def _take_arguments(self, call: CallObject) -> None:
        self.arguments(call.take_arguments())

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def end(self) -> list[Event]:
        """Return the last events: blanks that were held back are content if there was no call."""
        blanks = self._blanks.flush()
        if blanks and not self._count:
            self._events.append(Content(blanks))
        return self.take()
