"""EBNF in llama.cpp's notation (GBNF), before the grammar library's converter reads it.

The converter knows neither alternatives on lines of their own nor characters by their number of
four or eight digits. Pure.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r'(?P<text>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\])|(?P<comment>#[^\n]*)|(?P<bar>\s*\n\s*\|)'
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_CONTROL = re.compile(r"((?:\\x[01][0-9a-f])+)")
_MEANINGFUL = frozenset('"\\[]')


def tidied(grammar: str) -> str:
    """Return the grammar without comments, with each rule's alternatives on its line and characters
    as themselves."""
    return _PIECE.sub(_tidy, grammar)


def _tidy(found: re.Match[str]) -> str:
    if found["text"] is None:
        return "" if found["comment"] is not None else " |"
    text = _ESCAPE.sub(_character, found["text"])
    pieces = _CONTROL.split(text[1:-1]) if text.startswith('"') else []
    if len(pieces) < 2:
        return text
    # The converter's texts have no control characters; its classes do.
    written = [
        "".join(f"[{one}]" for one in re.findall(r"\\x..", piece)) if place % 2 else f'"{piece}"'
        for place, piece in enumerate(pieces)
        if piece
    ]
    return f"({' '.join(written)})"


def _character(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    code = int(number, 16) if number else 0
    if not number or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return found[0]
    character = chr(code)
    if code < 0x20:
        return f"\\x{code:02x}"
    return f"\\{character}" if character in _MEANINGFUL else character
