"""Reasoning between <think> and </think> before an answer, as Qwen 3 and DeepSeek R1 write it.

Whether it has begun, may begin or is over when the answer starts is told by the prompt's own end:
templates open the mark, or write an empty pair where thinking is switched off. The line breaks
around the marks are dropped. An answer that is cut before the closing mark is all reasoning.
"""

from __future__ import annotations

from enum import Enum, auto

from atom.answer_parsing.held_text import BlankHolder, partial_length

OPENING = "<think>"
CLOSING = "</think>"
_MOST_BLANKS = 32  # before the opening mark


class ReasoningStart(Enum):
    """Where an answer begins. POSSIBLE: with the mark, or without reasoning."""

    POSSIBLE = auto()
    OPEN = auto()
    OVER = auto()


def reasoning_start(prompt: str, *, always: bool) -> ReasoningStart:
    """always: the model reasons also where the prompt's end says nothing, without opening it."""
    end = prompt[-64:].rstrip()
    if end.endswith(CLOSING):
        return ReasoningStart.OVER
    return ReasoningStart.OPEN if always or end.endswith(OPENING) else ReasoningStart.POSSIBLE


class _Within(Enum):
    OPENING = auto()  # nothing but blanks and a part of the opening mark
    REASONING = auto()
    CONTENT = auto()


class ReasoningSplitter:
    """One answer's: text to (reasoning, content)."""

    def __init__(self, start: ReasoningStart) -> None:
        self._within = _Within.CONTENT if start is ReasoningStart.OVER else _Within.OPENING
        self._may_lack_opening = start is ReasoningStart.OPEN
        self._text = ""  # not decided on yet
        self._blanks = BlankHolder()
        self._at_start = False  # of reasoning, or of the content behind it
        self.reasons = start is ReasoningStart.OPEN  # as far as that is known

    @property
    def has_ended(self) -> bool:
        """Whether there is no more reasoning."""
        return self._within is _Within.CONTENT

    @property
    def is_over(self) -> bool:
        """Whether all that comes is content, to the entry."""
        return self._within is _Within.CONTENT and not self._at_start

    @property
    def is_closed(self) -> bool:
        """Whether no reasoning comes any more."""
        return self._within is _Within.CONTENT

    def feed(self, piece: str) -> tuple[str, str]:
        if self.is_over:
            return "", piece
        plain = self._within is _Within.REASONING and not (self._text or self._at_start)
        if plain and "<" not in piece:
            return self._blanks.pass_on(piece), ""
        self._text += piece
        reasoning = ""
        if self._within is _Within.OPENING and not self._open():
            return "", ""
        if self._within is _Within.REASONING:
            reasoning = self._reason()
        return reasoning, self._content()

    def finish(self) -> tuple[str, str]:
        """What was held back."""
        text, self._text = self._text, ""
        if self._within is _Within.REASONING or (
            self._within is _Within.OPENING and self._may_lack_opening
        ):
            return self._blanks.flush() + text, ""
        return "", text

    def _open(self) -> bool:
        """Whether it is decided how the answer begins."""
        begun = self._text.lstrip()
        if len(self._text) - len(begun) > _MOST_BLANKS:
            begun = self._text  # no mark any more
        elif OPENING.startswith(begun) and begun != OPENING:
            return False
        if begun.startswith(OPENING):
            self._text = begun.removeprefix(OPENING)
        elif not self._may_lack_opening:
            self._within = _Within.CONTENT
            return True
        self._within, self._at_start, self.reasons = _Within.REASONING, True, True
        return True

    def _reason(self) -> str:
        reasoning, mark, behind = self._text.partition(CLOSING)
        if mark:
            self._text = behind
            shown = self._blanks.pass_on(self._without_first_lines(reasoning))
            self._within, self._at_start = _Within.CONTENT, True
            return shown
        certain = len(reasoning) - partial_length(reasoning, CLOSING)
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
