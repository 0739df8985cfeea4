"""Reasoning between two marks before an answer: <think> and </think>, as most families write it, or
Mistral's [THINK] and [/THINK].

The end of the prompt decides whether reasoning has begun, may begin or is over when the answer
starts: templates open the mark, or write an empty pair if thinking is off. The line breaks around
the marks are dropped. An answer that is cut before the closing mark is all reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from atom.answer_parsing.held_text import BlankHolder, partial_length


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around the reasoning. title: text that a model writes after the opening mark, which
    is not reasoning; content: marks around the content after it, "" without such marks, or with the
    closing one alone."""

    opening: str
    closing: str
    title: str = ""
    content: tuple[str, str] = ("", "")

    @property
    def texts(self) -> tuple[str, ...]:
        """List the marks that may be special tokens."""
        return tuple(filter(None, (self.opening, self.closing, *self.content)))


THINK = ReasoningMarks("<think>", "</think>")
_MOST_BLANKS = 32  # before the opening mark


class ReasoningStart(Enum):
    """The part of an answer with which it begins. POSSIBLE: with the mark, or without reasoning."""

    POSSIBLE = auto()
    OPEN = auto()
    OVER = auto()


def reasoning_start(prompt: str, *, always: bool, marks: ReasoningMarks = THINK) -> ReasoningStart:
    """Return the part with which an answer begins; `always`: the model reasons even if the prompt's
    end does not open the mark."""
    end = prompt[-64:].rstrip()
    if end.endswith(marks.closing):
        return ReasoningStart.OVER
    opened = always or end.endswith((marks.opening, marks.opening + marks.title))
    return ReasoningStart.OPEN if opened else ReasoningStart.POSSIBLE


def continued_start(said: str, marks: ReasoningMarks = THINK) -> ReasoningStart:
    """Return the part with which the continuation of a text begins: the last mark in it decides."""
    opened, closed = said.rfind(marks.opening), said.rfind(marks.closing)
    if opened > closed:
        return ReasoningStart.OPEN
    blank = not said.strip() and closed < 0
    return ReasoningStart.POSSIBLE if blank else ReasoningStart.OVER


class ReasoningCounter(Protocol):
    """Counts the tokens of one answer's reasoning, marks included."""

    @property
    def total(self) -> int: ...

    @property
    def over(self) -> bool:
        """Return whether reasoning has ended."""
        ...

    def add(self, text: str) -> None:
        """Take the text that one token completed."""
        ...


class _Within(Enum):
    OPENING = auto()  # only blanks and a part of the opening mark
    REASONING = auto()
    CONTENT = auto()


class ReasoningSplitter:
    """Splits the text of one answer into (reasoning, content)."""

    def __init__(self, start: ReasoningStart, marks: ReasoningMarks = THINK) -> None:
        self._marks = marks
        self._within = _Within.CONTENT if start is ReasoningStart.OVER else _Within.OPENING
        self._may_lack_opening = start is ReasoningStart.OPEN
        self._text = ""  # not decided on yet
        self._blanks = BlankHolder()
        self._at_start = False  # of reasoning, or of the content after it
        self.reasons = start is ReasoningStart.OPEN  # as far as that is known

    @property
    def is_over(self) -> bool:
        """Return whether all further text is content, unchanged."""
        return self._within is _Within.CONTENT and not self._at_start

    @property
    def is_closed(self) -> bool:
        """Return whether no further reasoning can come."""
        return self._within is _Within.CONTENT

    def feed(self, piece: str) -> tuple[str, str]:
        if self.is_over:
            return "", piece
        plain = self._within is _Within.REASONING and not (self._text or self._at_start)
        if plain and self._marks.closing[0] not in piece:
            return self._blanks.pass_on(piece), ""
        self._text += piece
        reasoning = ""
        if self._within is _Within.OPENING and not self._open():
            return "", ""
        if self._within is _Within.REASONING:
            reasoning = self._reason()
        return reasoning, self._content()

    def finish(self) -> tuple[str, str]:
        """Return the text that was held back, as (reasoning, content)."""
        text, self._text = self._text, ""
        if self._within is _Within.REASONING or (
            self._within is _Within.OPENING and self._may_lack_opening
        ):
            return self._blanks.flush() + text, ""
        return "", text

    def _open(self) -> bool:
        """Detect the opening mark; return False if more text is needed to decide."""
        begun = self._text.lstrip()
        if len(self._text) - len(begun) > _MOST_BLANKS:
            begun = self._text  # no mark any more
        elif self._marks.opening.startswith(begun) and begun != self._marks.opening:
            return False
        title = self._marks.title
        if begun.startswith(self._marks.opening):
            begun = begun.removeprefix(self._marks.opening)
            if title.startswith(begun) and begun != title:
                return False
            self._text = begun.removeprefix(title)
        elif not self._may_lack_opening:
            self._within = _Within.CONTENT
            return True
        self._within, self._at_start, self.reasons = _Within.REASONING, True, True
        return True

    def _reason(self) -> str:
        reasoning, mark, behind = self._text.partition(self._marks.closing)
        if mark:
            self._text = behind
            shown = self._blanks.pass_on(self._without_first_lines(reasoning))
            self._within, self._at_start = _Within.CONTENT, True
            return shown
        certain = len(reasoning) - partial_length(reasoning, self._marks.closing)
        self._text = reasoning[certain:]
        return self._blanks.pass_on(self._without_first_lines(reasoning[:certain]))

    def _content(self) -> str:
        if self._within is not _Within.CONTENT:
            return ""
        text, self._text = self._text, ""
        return self._without_first_lines(text)

    def _without_first_lines(self, text: str) -> str:
        if self._at_start:
            text = text.lstrip("\r\n")
            self._at_start = not text
        return text


class MarkedCounter:
    """A `ReasoningCounter` of the tokens before the closing mark."""

    def __init__(self, start: ReasoningStart, marks: ReasoningMarks) -> None:
        self._splitter = ReasoningSplitter(start, marks)
        self._count = 0

    @property
    def total(self) -> int:
        return self._count if self._splitter.reasons else 0

    @property
    def over(self) -> bool:
        return self._splitter.is_closed

    def add(self, text: str) -> None:
        if not self._splitter.is_closed:
            self._count += 1
            self._splitter.feed(text)
