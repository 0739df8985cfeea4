"""Calls at the end of reasoning that the model never closed.

Some models write a call while they still think, and end the answer with it. A complete call at the
answer's end is meant as a call: the agent would wait for it for ever. A call that is followed by
more text, by the mark that closes reasoning or by a cut is a thought. So reasoning is held back
from a call's mark on, until the text decides. Called by AnswerParser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atom.answer_parsing.events import CallParser, CallStart, Content, Event
from atom.answer_parsing.held_text import partial_length


class TrailingCalls:
    """Find the calls at the end of one answer's reasoning. mark: the beginning of calls; parser:
    makes a parser of calls.

    Text is parsed from a mark on. If it has more than calls, the parser restarts at the next mark,
    so each piece between two marks is parsed at most twice.
    """

    def __init__(self, mark: str, parser: Callable[[], CallParser]) -> None:
        self._mark = mark
        self._new_parser = parser
        self._held: list[str] = []  # from blanks before the first mark that is parsed
        self._since_mark = ""  # the last part of it: from the last mark on, or a part of a mark
        self._parser: CallParser | None = None
        self._parsed = 0  # of the text since the last mark
        self._from_last_mark = False  # the parser began there
        self._events: list[Event] = []

    def feed(self, reasoning: str) -> str:
        """Add reasoning text; return the text that is certain to be reasoning."""
        self._since_mark += reasoning
        shown: list[str] = []
        while True:
            begun = len(self._mark) if self._parser is not None else 0
            place = self._since_mark.find(self._mark, begun)
            end = place if place >= 0 else self._certain()
            if self._parser is not None:
                self._parse(end, shown)
            else:
                self._show_text(end, shown)
            if place < 0:
                return "".join(shown)
            self._pass_to_mark(shown)

    def release(self) -> str:
        """Return all held text as reasoning."""
        held = "".join([*self._held, self._since_mark])
        self._held, self._since_mark, self._parsed = [], "", 0
        self._parser, self._events = None, []
        return held

    def finish(self, *, ended: bool) -> tuple[str, Sequence[Event]]:
        """Return the reasoning and the calls that were held back. ended: the answer was not cut."""
        shown: list[str] = []
        if self._parser is not None:
            self._parse(len(self._since_mark), shown)
        parser, events = self._parser, self._events
        if not ended or parser is None or parser.within_call:
            return "".join(shown) + self.release(), ()
        events = [*events, *parser.finish(ended=True)]
        called = any(isinstance(event, CallStart) for event in events)
        if not called or any(_is_text(event) for event in events):
            return "".join(shown) + self.release(), ()
        self.release()
        return "".join(shown), [event for event in events if not isinstance(event, Content)]

    def _certain(self) -> int:
        """Find the beginning of a partial mark at the end of the text, or the text's end."""
        return len(self._since_mark) - partial_length(self._since_mark, self._mark)

    def _parse(self, end: int, shown: list[str]) -> None:
        """Parse the held text up to `end`, and show it if it has text besides calls."""
        if self._parser is None or end <= self._parsed:
            return
        found = self._parser.feed(self._since_mark[self._parsed : end])
        self._parsed = end
        self._events += found
        if not any(_is_text(event) for event in found):
            return
        held = "".join(self._held)
        if self._from_last_mark:
            shown.append(held)
            self._held, self._parser, self._events, self._parsed = [], None, [], 0
            self._show_text(end, shown)
        else:  # the calls before the last mark are thoughts: it may begin a call all the same
            thoughts = held.rstrip()
            shown.append(thoughts)
            self._held = [held[len(thoughts) :]]
            self._begin()
            self._parse(end, shown)

    def _begin(self) -> None:
        """Parse from the last mark on."""
        self._parser, self._parsed, self._from_last_mark = self._new_parser(), 0, True
        self._events = []

    def _show_text(self, end: int, shown: list[str]) -> None:
        """Show text that belongs to no call, but for the blanks before a mark."""
        text = self._since_mark[:end]
        if end < len(self._since_mark):
            text = text.rstrip()
        shown.append(text)
        self._since_mark = self._since_mark[len(text) :]

    def _pass_to_mark(self, shown: list[str]) -> None:
        """Continue at the next mark."""
        place = self._since_mark.find(self._mark, len(self._mark) if self._parser else 0)
        self._held.append(self._since_mark[:place])
        self._since_mark, self._parsed = self._since_mark[place:], 0
        if self._parser is None:
            self._begin()
        else:
            self._from_last_mark = False


def _is_text(event: Event) -> bool:
    return isinstance(event, Content) and not event.text.isspace()
