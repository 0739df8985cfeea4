"""Calls as Llama 3.1 and later write them: bare objects, one or several with semicolons between.

    {"name": "weather", "parameters": {"city": "Paris"}}; {"name": "time", "parameters": {}}

The mark <|python_tag|> may precede a call; usually it is a special token and not text. No mark
distinguishes a call from an object that the user requested. So an object is a call only if it has a
tool's name, parameters (or arguments) and no other key except a type.
"""

from __future__ import annotations

from atom.answer_parsing.markup_parser import FENCE, Reading
from atom.answer_parsing.object_calls import ObjectCallParser

MARK = "<|python_tag|>"
_OBJECT = "{"


class Llama3JsonParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (MARK, FENCE, "[", _OBJECT)
    bare = True

    def _call(self, mark: str) -> Reading[bool]:
        if mark != MARK:
            self._at = 0
        return (yield from self._objects())

    def _refuse(self, mark: str) -> None:
        """Treat an object as content. It is not read again, since each brace in it would begin
        another."""
        if mark == _OBJECT:
            self._found.content(self._text[: self._at])
            self._decide()
        else:
            super()._refuse(mark)
