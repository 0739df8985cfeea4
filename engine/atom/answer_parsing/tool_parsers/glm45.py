"""Calls as GLM 4.5 and later write them, keys and values one by one (4.7 without line breaks):

<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from __future__ import annotations

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.call_policy import known_name, name_and_property
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS, Parameter, ParameterParser

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
    closing = CALL_END
    value_ends = (VALUE_END,)
    openings = (KEY,)
    call_ends = (CALL_END,)
    strays = (VALUE_END, KEY_END, VALUE)
    _joined = ""  # a key that follows the name without a mark

    def _call(self, mark: str) -> Reading[bool]:
        if (yield from self._blanks()) in "{[":
            return (yield from self._objects())
        found = yield from self._name("\n", "{", *MARKS)
        if found is None:
            return False
        written, end = found
        name = known_name(written, self._tools)
        if not name and end == KEY_END:
            name, self._joined = name_and_property(written.strip(), self._tools)
        if not name:
            return False
        self._at -= len(end)
        return (yield from self._body(name))

    def _parameter(self) -> Reading[Parameter | None]:
        key, self._joined = self._joined, ""
        if not key:
            if not (yield from self._one_of(KEY)):
                return None
            found = yield from self._up_to(KEY_END, VALUE, CALL_END, most=MOST_KEY_CHARS)
            if found is None or found[1] == CALL_END or not found[0].strip():
                return None
            key = found[0].strip()
            self._at -= len(found[1])
        yield from self._one_of(KEY_END)
        yield from self._blanks()
        yield from self._one_of(VALUE)
        return Parameter(key, argument_types(self._tools.get(self._tool), key))
