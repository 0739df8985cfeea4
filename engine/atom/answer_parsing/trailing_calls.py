"""Calls at the end of reasoning that the model never closed.

Some models write a call while they still think, and end the answer with it. A complete call behind
which nothing comes is meant: the agent would wait for it for ever. One that is followed by more, by
the mark that closes reasoning or by a cut is a thought. So reasoning is held back from the mark of
a call on, until it is known which. Called by AnswerParser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atom.answer_parsing.events import CallParser, CallStart, Content, Event
from atom.answer_parsing.held_text import partial_length


class TrailingCalls:
    """Finds the calls of one answer that stand at the end of its reasoning. mark: that calls begin
    with; parser: makes one for calls."""

    def __init__(self, mark: str, parser: Callable[[], CallParser]) -> None:
        self._mark = mark
        self._new_parser = parser
        self._held = ""  # from blanks before the mark on
        self._parser: CallParser | None = None
        self._events: list[Event] = []

    def feed(self, reasoning: str) -> str:
        """Give what is certain to be reasoning."""
        self._held += reasoning
        if self._parser is not None:
            self._events += self._parser.feed(reasoning)
        shown = ""
        while True:
            if self._parser is None:
                position = self._held.find(self._mark)
                if position < 0:
                    return shown + self._pass_all_but_a_beginning()
                shown += self._begin(position)
            if not any(_is_text(event) for event in self._events):
                return shown
            shown += self._pass_mark()

    def release(self) -> str:
        """All that was held back is reasoning."""
        held, self._held = self._held, ""
        self._parser, self._events = None, []
        return held

    def finish(self, *, ended: bool) -> tuple[str, Sequence[Event]]:
        """Reasoning and calls that were held back. ended: the answer was not cut."""
        parser, events = self._parser, self._events
        if not ended or parser is None or parser.within_call:
            return self.release(), ()
        events = [*events, *parser.finish(ended=True)]
        called = any(isinstance(event, CallStart) for event in events)
        if not called or any(_is_text(event) for event in events):
            return self.release(), ()
        self.release()
        return "", [event for event in events if not isinstance(event, Content)]

    def _begin(self, position: int) -> str:
        """Let a parser look at what is held from the mark on; what stands before it."""
        self._parser = self._new_parser()
        self._events = [*self._parser.feed(self._held[position:])]
        shown = self._held[:position].rstrip()
        self._held = self._held[len(shown) :]
        return shown

    def _pass_all_but_a_beginning(self) -> str:
        """Hold what may be the beginning of a mark, with the blanks before it."""
        begun = partial_length(self._held, self._mark)
        shown = self._held[: len(self._held) - begun]
        shown = shown.rstrip() if begun else shown
        self._held = self._held[len(shown) :]
        return shown

    def _pass_mark(self) -> str:
        """Give up the first mark that is held: it begins no call at the end."""
        end = self._held.find(self._mark) + len(self._mark)
        shown, self._held = self._held[:end], self._held[end:]
        self._parser, self._events = None, []
        return shown


def _is_text(event: Event) -> bool:
    return isinstance(event, Content) and not event.text.isspace()
