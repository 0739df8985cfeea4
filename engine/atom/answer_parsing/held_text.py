"""Holds text back while it may still be the beginning of something else: markers, or blanks that
are dropped when a call follows."""

from __future__ import annotations


def partial_length(text: str, marker: str) -> int:
    """Return how many characters at the end of `text` may be the incomplete beginning of
    `marker`."""
    start = max(0, len(text) - len(marker) + 1)
    position = text.find(marker[0], start)
    while position >= 0:
        if marker.startswith(text[position:]):
            return len(text) - position
        position = text.find(marker[0], position + 1)
    return 0


class BlankHolder:
    """Pass text on, but blanks only together with the text after them."""

    __slots__ = ("_blanks",)

    def __init__(self) -> None:
        self._blanks = ""

    def pass_on(self, text: str) -> str:
        if not text or text.isspace():
            self._blanks += text
            return ""
        if not (self._blanks or text[-1].isspace()):
            return text
        whole = self._blanks + text
        shown = whole.rstrip()
        self._blanks = whole[len(shown) :]
        return shown

    def hold(self, text: str) -> None:
        """Treat this like a blank."""
        self._blanks += text

    def drop(self) -> None:
        self._blanks = ""

    def flush(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks
