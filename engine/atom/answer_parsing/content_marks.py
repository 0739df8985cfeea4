"""Marks around the content of an answer, after its reasoning, as Hunyuan and ERNIE write them:

    <think>…</think>
    <answer>
    It is warm.
    </answer>

Apriel writes the closing one alone, since the mark that ends the reasoning opens the content.
The marks and the line breaks inside and after them are not content. Content may come without marks.
"""

from __future__ import annotations

from atom.answer_parsing.held_text import partial_length

_LINES = "\r\n"


class ContentMarks:
    """Takes the marks off one answer's content, which comes in pieces."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        self._text = ""  # not decided on yet
        self._opened = not opening  # the end of the reasoning opens the content then
        self._over = False
        self._drops_lines = False

    def feed(self, piece: str) -> str:
        self._text += piece
        if not self._opened and not self._over and not self._open():
            return ""
        if self._drops_lines:
            self._text = self._text.lstrip(_LINES)
            self._drops_lines = not self._text
        return self._pass_on() if self._over else self._content()

    def finish(self) -> str:
        """Return the text that was held back."""
        text, self._text = self._text, ""
        return text

    def _open(self) -> bool:
        """Detect the opening mark; return False if more text is needed to decide."""
        begun = self._text.lstrip()
        if self._opening.startswith(begun) and begun != self._opening:
            return False
        self._opened = self._drops_lines = begun.startswith(self._opening)
        self._over = not self._opened
        if self._opened:
            self._text = begun.removeprefix(self._opening)
        return True

    def _content(self) -> str:
        before, mark, behind = self._text.partition(self._closing)
        if mark:
            self._over = True
            self._text = behind.lstrip(_LINES)
            self._drops_lines = not self._text
            return before.rstrip(_LINES) + self._pass_on()
        certain = before[: len(before) - partial_length(before, self._closing)].rstrip(_LINES)
        self._text = before[len(certain) :]
        return certain

    def _pass_on(self) -> str:
        text, self._text = self._text, ""
        return text
