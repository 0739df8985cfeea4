"""JsonValue finds where a JSON value ends that a model writes in pieces, and mends its text.

Models write line breaks and other control characters into texts as they are, escape what JSON does
not, and forget closing brackets before a mark. Every client refuses that, so it is mended on the
way: escapes become those of JSON, and what a mark cuts off is closed. What is right already stays
to the entry. Whether the value is JSON otherwise is for the reader of the whole. Called by
`CallObject`.
"""

from __future__ import annotations

import json
import re

_CONTROLS = {chr(code): f"\\u{code:04x}" for code in range(0x20)}
_CONTROLS |= {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_IN_TEXT = re.compile(r'["\\\x00-\x1f]')
_OUTSIDE = re.compile(r'["{}\[\]<]')
_AFTER_SCALAR = re.compile(r"[,}\]\s]")
_ESCAPES = '"\\/bfnrtu'
_CLOSING = {"{": "}", "[": "]"}


class JsonValue:
    """Follows one value from its first character. broken: a mark stands where it should go on."""

    __slots__ = ("_escaped", "_in_text", "_open", "broken", "first")

    def __init__(self, first: str) -> None:
        """first: the value's first character."""
        self.first = first
        self.broken = False
        self._open: list[str] = []  # brackets
        self._in_text = False
        self._escaped = False  # behind a backslash, which is not written yet

    @property
    def is_nested(self) -> bool:
        """Tell whether the value is an object or a list."""
        return self.first in "{["

    @property
    def complete(self) -> bool:
        """Tell whether no text and no bracket is open."""
        return not (self._in_text or self._open)

    def feed(self, text: str, position: int) -> tuple[int, str]:
        """Go on at `position`: the position behind the value, -1 where it goes on, and its text."""
        if not (self.is_nested or self.first == '"'):
            match = _AFTER_SCALAR.search(text, position)
            end = len(text) if match is None else match.start()
            return (-1 if match is None else end), text[position:end]
        written: list[str] = []
        while position < len(text):
            if self._escaped:
                written.append(self._escape(text[position]))
                position += 1
                continue
            match = (_IN_TEXT if self._in_text else _OUTSIDE).search(text, position)
            if match is None:
                written.append(text[position:])
                return -1, "".join(written)
            written.append(text[position : match.start()])
            position = match.end()
            if match[0] == "<":
                self.broken = True
                return match.start(), "".join([*written, self.closing()])
            written.append(self._take(match[0]))
            if self.complete and not self._escaped:
                return position, "".join(written)
        return -1, "".join(written)

    def closing(self) -> str:
        """Close what is open at the end of a value that was given up."""
        text = "\\\\" if self._escaped else ""
        text += '"' if self._in_text else ""
        return text + "".join(_CLOSING[sign] for sign in reversed(self._open))

    def _take(self, sign: str) -> str:
        if sign == "\\":
            self._escaped = True
            return ""
        if sign == '"':
            self._in_text = not self._in_text
        elif self._in_text:
            return _CONTROLS[sign]
        elif sign in _CLOSING:
            self._open.append(sign)
        elif self._open:
            self._open.pop()
        return sign

    def _escape(self, sign: str) -> str:
        """A backslash and the character behind it."""
        self._escaped = False
        if sign in _ESCAPES:
            return "\\" + sign
        if sign == "'":
            return sign
        return _CONTROLS[sign] if sign in _CONTROLS else "\\\\" + sign


def json_text(text: str) -> str:
    """A whole value's text as JSON."""
    _, written = JsonValue(text[0]).feed(text, 0) if text else (-1, text)
    return written


def text_of(text: str) -> str:
    """The text of a JSON string; empty for anything else."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def unwrapped(text: str) -> str:
    """Arguments that are no object: some models write them as a text that holds the object, or as
    null for none."""
    if text.startswith('"'):
        text = json_text(text_of(text).strip())
    return "{}" if text in ("", "null") else text
