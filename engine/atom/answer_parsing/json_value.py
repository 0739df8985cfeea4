"""Finds where a JSON value ends that arrives in pieces.

Looks at quotes and brackets only: whether what is between them is JSON is for the reader of the
whole value. Called by `CallObject`.
"""

from __future__ import annotations

import re

_IN_TEXT = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_AFTER_SCALAR = re.compile(r"[,}\]\s]")


class ValueEnd:
    """Of one value, from its first character on."""

    __slots__ = ("_depth", "_escaped", "_in_text", "first")

    def __init__(self, first: str) -> None:
        """first: the value's first character."""
        self.first = first
        self._depth = 0
        self._in_text = False
        self._escaped = False

    @property
    def is_nested(self) -> bool:
        """Whether the value is an object or a list."""
        return self.first in "{["

    def find(self, text: str, position: int) -> int:
        """The position behind the value, in text that goes on at `position`; -1: it goes on."""
        if not (self.is_nested or self.first == '"'):
            match = _AFTER_SCALAR.search(text, position)
            return -1 if match is None else match.start()
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = (_IN_TEXT if self._in_text else _OUTSIDE).search(text, position)
            if match is None:
                return -1
            position = match.end()
            self._take(match[0])
            if not (self._in_text or self._escaped or self._depth):
                return position
        return -1

    def _take(self, sign: str) -> None:
        if sign == "\\":
            self._escaped = True
        elif sign == '"':
            self._in_text = not self._in_text
        else:
            self._depth += 1 if sign in "{[" else -1
