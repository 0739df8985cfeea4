"""AnswerParser: turn one answer's text into events with the parsers of the model's family.

Reasoning comes first, and tool calls are parsed from the text after it. If a family writes both as
messages in channels, one parser reads the whole answer. `AnswerParsing` holds the settings that all
answers of a request share; it makes a parser for each answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atom.answer_parsing.content_marks import ContentMarks
from atom.answer_parsing.events import (
    CallArguments,
    CallParser,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.answer_parsing.reasoning_parser import (
    THINK,
    MarkedCounter,
    ReasoningCounter,
    ReasoningMarks,
    ReasoningSplitter,
    ReasoningStart,
)
from atom.answer_parsing.tool_parsers import CallFormat
from atom.answer_parsing.tool_parsers.harmony import ChannelCounter, HarmonyParser
from atom.answer_parsing.tools import Tools
from atom.answer_parsing.trailing_calls import TrailingCalls
from atom.structured_outputs.reasoning_span import ReasoningSpan


@dataclass(frozen=True, slots=True)
class AnswerParsing:
    """The settings for parsing the answers to one request. reasoning: how answers begin. marks:
    around reasoning; None if the family uses channels instead. calls: their format, None without
    tools; tools: the request's tools. several: more than the first call counts. shows_reasoning:
    whether reasoning is shown or left out. special_ids: the marks that are special tokens of this
    vocabulary, and not text unless requested."""

    reasoning: ReasoningStart = ReasoningStart.OVER
    marks: ReasoningMarks | None = THINK
    shows_reasoning: bool = True
    calls: CallFormat | None = None
    tools: Tools = field(default_factory=dict)
    several: bool = True
    special_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Return whether answers may have parts other than content."""
        reasons = self.marks is None or self.reasoning is not ReasoningStart.OVER
        return self.calls is not None or reasons or self.content_marks is not None

    @property
    def content_marks(self) -> tuple[str, str] | None:
        """Return the marks around the content, or None."""
        return self.marks.content if self.marks is not None and self.marks.content[1] else None

    @property
    def span(self) -> ReasoningSpan | None:
        """Return the span of the answers' reasoning; None if they have no reasoning."""
        start = self.reasoning
        if self.marks is None:
            spoken = start is ReasoningStart.OVER
            return ReasoningSpan(start is ReasoningStart.OPEN, spoken=spoken)
        if start is ReasoningStart.OVER:
            return None
        marks = self.marks
        return ReasoningSpan(start is ReasoningStart.OPEN, marks.opening, marks.closing)

    def parser(self) -> AnswerParser:
        return AnswerParser(self)

    def counter(self) -> ReasoningCounter | None:
        """Make a token counter for one answer's reasoning; None if it has no reasoning."""
        if self.marks is None:
            return ChannelCounter(self.reasoning)
        if self.reasoning is ReasoningStart.OVER:
            return None
        return MarkedCounter(self.reasoning, self.marks)


class AnswerParser:
    """Parses one answer. called: whether it holds a call."""

    def __init__(self, parsing: AnswerParsing) -> None:
        self._parsing = parsing
        start = ReasoningStart.OVER if parsing.marks is None else parsing.reasoning
        self._reasoning = ReasoningSplitter(start, parsing.marks or THINK)
        marks = parsing.content_marks
        self._content = None if marks is None else ContentMarks(*marks)
        self._calls: CallParser | None = None
        self._trailing: TrailingCalls | None = None
        self.called = False
        family = parsing.calls
        if parsing.marks is None:
            self._calls = HarmonyParser(parsing.tools, parsing.reasoning, calls=family is not None)
        elif family is not None:
            self._calls = family.parser(parsing.tools)
            if family.mark and parsing.reasoning is not ReasoningStart.OVER:
                self._trailing = TrailingCalls(family.mark, lambda: family.parser(parsing.tools))

    @property
    def passes_on(self) -> bool:
        """Return whether all further text is content, unchanged."""
        return self._calls is None and self._content is None and self._reasoning.is_over

    def feed(self, piece: str) -> list[Event]:
        reasoning, text = self._reasoning.feed(piece)
        if text and self._content is not None:
            text = self._content.feed(text)
        if self._trailing is not None:
            reasoning = self._trailing.feed(reasoning)
            if self._reasoning.is_closed:
                reasoning += self._trailing.release()
                self._trailing = None
        return self._events(reasoning, text)

    def finish(self, *, ended: bool) -> list[Event]:
        """Return the events of the text that was held back. No text may be fed afterwards. ended:
        the model ended the answer itself; the answer was not cut."""
        reasoning, text = self._reasoning.finish()
        if self._content is not None:
            text = self._content.feed(text) + self._content.finish()
        calls: Sequence[Event] = ()
        if self._trailing is not None:
            shown = self._trailing.feed(reasoning)
            held, calls = self._trailing.finish(ended=ended)
            reasoning = shown + held
        events = [*self._events(reasoning, text), *self._counted(calls)]
        if self._calls is None:
            return events
        return [*events, *self._counted(self._calls.finish(ended=ended))]

    def _events(self, reasoning: str, text: str) -> list[Event]:
        shown = reasoning and self._parsing.shows_reasoning
        events: list[Event] = [Reasoning(reasoning)] if shown else []
        if text and self._calls is None:
            events.append(Content(text))
        elif text and self._calls is not None:
            events += self._counted(self._calls.feed(text))
        return events

    def _counted(self, events: Sequence[Event]) -> list[Event]:
        """Return the events that the client is shown, and record whether one of them starts a
        call."""
        self.called = self.called or any(isinstance(event, CallStart) for event in events)
        return [event for event in events if self._shows(event)]

    def _shows(self, event: Event) -> bool:
        if isinstance(event, Reasoning):
            return self._parsing.shows_reasoning
        extra = isinstance(event, CallStart | CallArguments) and event.index > 0
        return self._parsing.several or not extra
