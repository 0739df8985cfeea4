"""SpokenText: separate, piece by piece, the text of an answer for the user from the rest.

Reasoning, its marks, the line breaks after them and heads of messages are not for the user; stop
strings are searched for in the rest. Every character is returned once, in order; only the possible
beginning of a mark is held back. Used by the code that cuts answers
(model_engine/front/stop_strings.py).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from atom.answer_parsing.held_text import partial_length
from atom.answer_parsing.tool_parsers import harmony
from atom.structured_outputs.reasoning_span import ReasoningSpan

# (whether it is for the user, text)
Part = tuple[bool, str]
_LINES = "\r\n"
_MOST_BLANKS = 32  # before the opening mark
_ENDS = (harmony.END, harmony.CALL, harmony.RETURN, harmony.START, harmony.CHANNEL)
_HEADS = (*_ENDS, harmony.MESSAGE, "to=")
_REASONS = re.compile(re.escape(harmony.CHANNEL) + r"\s*analysis|to=")


class SpokenText(ABC):
    """Splits one answer's text. over: all that follows is for the user."""

    over = False

    def __init__(self) -> None:
        self._text = ""  # not decided on yet

    def feed(self, piece: str) -> list[Part]:
        self._text += piece
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    @abstractmethod
    def flush(self) -> list[Part]:
        """Return the parts that were held back: the answer has ended."""

    @abstractmethod
    def _step(self, parts: list[Part]) -> bool:
        """Decide on more of the text; whether there may be more to do."""

    def _give(self, parts: list[Part], end: int, *, spoken: bool) -> None:
        if end:
            parts.append((spoken, self._text[:end]))
            self._text = self._text[end:]


def spoken_text(span: ReasoningSpan) -> SpokenText:
    """Make a splitter for an answer with this span of reasoning."""
    return _BetweenMarks(span) if span.closing else _InChannels(span)


class _BetweenMarks(SpokenText):
    def __init__(self, span: ReasoningSpan) -> None:
        super().__init__()
        self._span = span
        self._at_start = not span.opened
        self._closed = False

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        return [(self._at_start or self.over, text)] if text else []

    def _step(self, parts: list[Part]) -> bool:
        if self.over:
            self._give(parts, len(self._text), spoken=True)
            return False
        if self._at_start:
            return self._open()
        if self._closed:
            lines = len(self._text) - len(self._text.lstrip(_LINES))
            self._give(parts, lines, spoken=False)
            self.over = bool(self._text)
            return self.over
        place = self._text.find(self._span.closing)
        if place < 0:
            held = partial_length(self._text, self._span.closing)
            self._give(parts, len(self._text) - held, spoken=False)
            return False
        self._give(parts, place + len(self._span.closing), spoken=False)
        self._closed = True
        return True

    def _open(self) -> bool:
        begun = self._text.lstrip()
        opening = self._span.opening
        blanks = len(self._text) - len(begun)
        if blanks <= _MOST_BLANKS and begun != opening and opening.startswith(begun):
            return False
        self._at_start = False
        self.over = blanks > _MOST_BLANKS or not begun.startswith(opening)
        return True


class _InChannels(SpokenText):
    def __init__(self, span: ReasoningSpan) -> None:
        super().__init__()
        self._head: str | None = None if span.opened or span.spoken else ""
        self._spoken = span.spoken

    def flush(self) -> list[Part]:
        text, self._text = self._text, ""
        spoken = self._spoken if self._head is None else not self._head
        return [(spoken, text)] if text else []

    def _step(self, parts: list[Part]) -> bool:
        if self._head is not None:
            return self._in_head(parts, self._head)
        places = [place for mark in _ENDS if (place := self._text.find(mark)) >= 0]
        end = min(places, default=-1)
        if end < 0:
            held = max(partial_length(self._text, mark) for mark in _ENDS)
            self._give(parts, len(self._text) - held, spoken=self._spoken)
            return False
        self._give(parts, end, spoken=self._spoken)
        self._head = ""
        return True

    def _in_head(self, parts: list[Part], head: str) -> bool:
        """Read a message's head; return False if more text is needed. Text without a head is for
        the user."""
        if not head:
            begun = self._text.lstrip()
            if not begun or any(m.startswith(begun) and m != begun for m in _HEADS):
                return False
            if not begun.startswith(_HEADS):
                self._head, self._spoken = None, True
                return True
        place = self._text.find(harmony.MESSAGE)
        held = 0 if place >= 0 else partial_length(self._text, harmony.MESSAGE)
        end = place + len(harmony.MESSAGE) if place >= 0 else len(self._text) - held
        self._head = head + self._text[:end]
        self._give(parts, end, spoken=False)
        if place < 0:
            return False
        self._spoken, self._head = not _REASONS.search(self._head), None
        return True
