"""Spacing: the white space that JSON may have between its parts, as elements of the grammar."""

from __future__ import annotations

from dataclasses import dataclass

# Blanks and line breaks in a row: an answer must not be white space to its end.
MOST_BLANKS = 10
_BLANKS = rf"[ \n\r\t]{{0,{MOST_BLANKS}}}"


@dataclass(frozen=True, slots=True)
class Spacing:
    comma: str
    colon: str
    within: str


LOOSE = Spacing(f'{_BLANKS} "," {_BLANKS}', f'{_BLANKS} ":" {_BLANKS}', _BLANKS)
ONE_LINE = Spacing('", "', '": "', '""')
