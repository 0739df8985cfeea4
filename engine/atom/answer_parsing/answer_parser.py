"""AnswerParser: one answer's text to events, through the parsers of its family.

Reasoning comes first, and calls are looked for in what is behind it. `AnswerParsing` is what a
request's answers have in common; it makes a parser for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom.answer_parsing.events import (
    CallArguments,
    CallEvent,
    CallParser,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.families import CallFormat
from atom.answer_parsing.reasoning import ReasoningSplitter, ReasoningStart


@dataclass(frozen=True, slots=True)
class AnswerParsing:
    """reasoning: where answers begin. calls: how they are written, None without tools; tools: the
    names there are. several: more than the first call counts. shows_reasoning: else it is left
    out."""

    reasoning: ReasoningStart = ReasoningStart.OVER
    shows_reasoning: bool = True
    calls: CallFormat | None = None
    tools: tuple[str, ...] = ()
    several: bool = True

    @property
    def needed(self) -> bool:
        """Whether answers may be anything but content."""
        return self.calls is not None or self.reasoning is not ReasoningStart.OVER

    def parser(self) -> AnswerParser:
        calls = None if self.calls is None else self.calls.parser(self.tools)
        return AnswerParser(self, ReasoningSplitter(self.reasoning), calls)


class AnswerParser:
    """One answer's. called: whether it holds a call."""

    def __init__(
        self, parsing: AnswerParsing, reasoning: ReasoningSplitter, calls: CallParser | None
    ) -> None:
        self._parsing = parsing
        self._reasoning = reasoning
        self._calls = calls
        self.called = False

    @property
    def passes_on(self) -> bool:
        """Whether all that comes is content, to the letter."""
        return self._calls is None and self._reasoning.is_over

    def feed(self, piece: str) -> list[Event]:
        reasoning, text = self._reasoning.feed(piece)
        return self._events(reasoning, text)

    def finish(self) -> list[Event]:
        """What was held back; nothing is fed afterwards."""
        events = self._events(*self._reasoning.finish())
        return events if self._calls is None else [*events, *self._counted(self._calls.finish())]

    def _events(self, reasoning: str, text: str) -> list[Event]:
        shown = reasoning and self._parsing.shows_reasoning
        events: list[Event] = [Reasoning(reasoning)] if shown else []
        if text and self._calls is None:
            events.append(Content(text))
        elif text and self._calls is not None:
            events += self._counted(self._calls.feed(text))
        return events

    def _counted(self, events: Sequence[CallEvent]) -> list[CallEvent]:
        self.called = self.called or any(isinstance(event, CallStart) for event in events)
        if self._parsing.several:
            return list(events)
        return [
            event
            for event in events
            if not (isinstance(event, CallStart | CallArguments) and event.index > 0)
        ]
