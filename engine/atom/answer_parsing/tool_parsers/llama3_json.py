"""Calls as Llama 3.1 and later write them: bare objects, one or several with semicolons between.

    {"name": "weather", "parameters": {"city": "Paris"}}; {"name": "time", "parameters": {}}

The mark <|python_tag|> may stand before one; usually it is a special token and no text at all.
There being nothing else to tell a call from an object that was asked for, an object is one only if
it has a tool's name, parameters (or arguments) and nothing else but a type.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from atom.answer_parsing.call_object import CallKeys
from atom.answer_parsing.call_scanner import CallScanner
from atom.answer_parsing.held_text import partial_length

MARK = "<|python_tag|>"
# A mark with an object behind it; of an object the next character is looked at, if it is there.
_BEGIN = re.compile(r"(?:<\|python_tag\|>\s{0,8})?\{(?=[\"\s]|\Z)")
_MARK_AT_END = re.compile(r"<\|python_tag\|>\s{0,8}\Z")
_BETWEEN = re.compile(r"[;\s]+")


class Llama3JsonParser(CallScanner):
    """A `CallParser` of one answer. tools: their names."""

    def __init__(self, tools: Collection[str]) -> None:
        keys = CallKeys(
            is_known=frozenset(tools).__contains__,
            others=frozenset({"type"}),
            needs_arguments=True,
        )
        super().__init__(keys, begins_with=MARK[0] + "{")

    def _seek(self) -> bool:
        if self._behind_call:
            self._pass_separators()
        begin = _BEGIN.search(self._text)
        if begin is None:
            self._keep(self._possible_mark())
            return False
        self._keep(begin.start())
        self._begin(len(begin[0]) - 1)
        return True

    def _pass_separators(self) -> None:
        between = _BETWEEN.match(self._text)
        if between is not None:
            self._found.separator(between[0])
            self._text = self._text[between.end() :]
        self._behind_call = not self._text

    def _possible_mark(self) -> int:
        """Find where text begins that may become the mark before an object."""
        whole = _MARK_AT_END.search(self._text)
        if whole is not None:
            return whole.start()
        return len(self._text) - partial_length(self._text, MARK)
