"""Calls as GLM 4.5 and later write them, keys and values one by one (4.7 without line breaks):

<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from __future__ import annotations

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS, ParameterParser

CALL = "<tool_call>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"
CALL_END = "</tool_call>"
MARKS = (CALL, KEY, KEY_END, VALUE, VALUE_END, CALL_END)


class Glm45Parser(ParameterParser):
    """A `CallParser` of one answer."""

    marks = (CALL,)
    value_end = VALUE_END
    followers = (KEY, CALL_END)

    def _call(self, mark: str) -> Reading[bool]:
        yield from self._blanks()
        start = self._at
        found = yield from self._name("\n", KEY, CALL_END)
        name = "" if found is None else found[0].strip()
        if found is None or not name or (name not in self._tools and name[0] in '{[<"'):
            return False
        self._at = start + len(found[0])
        yield from self._blanks()
        known = yield from self._one_of(KEY, CALL_END)
        if not known:
            return False  # a line of text
        self._at -= len(known)
        self._begin_call(name)
        self._name_of_tool = name
        yield from self._parameters()
        return True

    def _next_parameter(self, *, first: bool) -> Reading[bool]:
        yield from self._blanks()
        if not (yield from self._one_of(KEY)):
            yield from self._one_of(CALL_END)
            return False
        key = yield from self._up_to(KEY_END, most=MOST_KEY_CHARS)
        if key is None:
            return False
        yield from self._blanks()
        yield from self._one_of(VALUE)
        types = argument_types(self._tools.get(self._name_of_tool), key[0])
        yield from self._argument(key[0], types, first=first)
        return True
