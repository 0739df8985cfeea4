"""CustomInput: extracts the free text of a custom tool's call from a model's JSON arguments.

Models call functions, so a model sees a custom tool as a function of a single text: {"input": "…"}.
Its arguments arrive in pieces of any size, perhaps cut within an escape, and the text is passed on
piece by piece. Arguments of another form are taken as the text: a model that wrote its input bare
meant that.
"""

from __future__ import annotations

import json
import re

FIELD = "input"
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# A piece of a JSON string that is complete: a surrogate's other half may still come.
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE_CHARS = 2
_UNICODE_CHARS = 6
_PAIR_CHARS = 12


class CustomInput:
    """Convert pieces of arguments to pieces of text; the results of `feed` and `finish` make up
    `text`."""

    def __init__(self) -> None:
        self._raw: list[str] = []
        self._held = ""
        self._texts: list[str] = []
        self._begun = False
        self._ended = False

    def feed(self, piece: str) -> str:
        """Return the text that is certain now."""
        self._raw.append(piece)
        if self._ended:
            return ""
        self._held += piece
        if not self._begun:
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            self._begun, self._held = True, self._held[opening.end() :]
        return self._tell(self._decode())

    def finish(self) -> str:
        """Return the raw arguments as the text if they hold no such JSON string; nothing is fed
        afterwards."""
        return "" if self._begun else self._tell("".join(self._raw))

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def _tell(self, text: str) -> str:
        self._texts.append(text)
        return text

    def _decode(self) -> str:
        """Decode the buffer up to the string's end, or up to an incomplete escape."""
        held, position, found = self._held, 0, []
        while position < len(held):
            plain = _PLAIN.match(held, position)
            if plain is not None:
                found.append(plain.group())
                position = plain.end()
                continue
            if held[position] == '"':
                self._ended = True
                break
            width = _escape_width(held, position)
            if width is None:
                break
            found.append(_unescaped(held[position : position + width]))
            position += width
        self._held = held[position:]
        return "".join(found)


def _escape_width(held: str, position: int) -> int | None:
    """Count an escape's characters, with those of a pair's second half; None if it is
    incomplete."""
    rest = len(held) - position
    if rest < _ESCAPE_CHARS:
        return None
    if held[position + 1] != "u":
        return _ESCAPE_CHARS
    if rest < _UNICODE_CHARS:
        return None
    is_half = held[position + 2 : position + 4].lower() in ("d8", "d9", "da", "db")
    if not is_half:
        return _UNICODE_CHARS
    following = held[position + _UNICODE_CHARS : position + _PAIR_CHARS]
    if len(following) < _UNICODE_CHARS and "\\u".startswith(following[:2]):
        return None
    return _PAIR_CHARS if following.startswith("\\u") else _UNICODE_CHARS


def _unescaped(escape: str) -> str:
    try:
        text: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape  # no escape of JSON: as the model wrote it
    return text


def as_arguments(text: str) -> str:
    """Write a custom tool's input as the arguments that the model sees in its history."""
    return json.dumps({FIELD: text}, ensure_ascii=False)
