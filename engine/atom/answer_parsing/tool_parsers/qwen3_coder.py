"""Calls as Qwen3-Coder and Qwen3.5 write them, each argument on lines of its own:

    <tool_call>
    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

The first mark is forgotten now and then, so the one behind it begins a call too, of a tool that
there is.
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS, ParameterParser

CALL = "<tool_call>"
FUNCTION = "<function="
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
FUNCTION_END = "</function>"
CALL_END = "</tool_call>"


class Qwen3CoderParser(ParameterParser):
    """A `CallParser` of one answer. call, call_end: around each call."""

    call: ClassVar[str] = CALL
    call_end: ClassVar[str] = CALL_END
    marks = (CALL, FUNCTION)
    value_end = PARAMETER_END
    followers = (PARAMETER, FUNCTION_END, CALL_END)
    lines = True

    def _call(self, mark: str) -> Reading[bool]:
        if mark == self.call:
            yield from self._blanks()
            if not (yield from self._one_of(FUNCTION)):
                return False
        found = yield from self._name(">")
        if found is None or not found[0] or (mark == FUNCTION and found[0] not in self._tools):
            return False
        self._begin_call(found[0])
        self._name_of_tool = found[0]
        yield from self._parameters()
        yield from self._blanks()
        if not (yield from self._one_of(self.call_end)):
            self._at = 0
        return True

    def _next_parameter(self, *, first: bool) -> Reading[bool]:
        yield from self._blanks()
        if not (yield from self._one_of(PARAMETER)):
            yield from self._one_of(FUNCTION_END)
            return False
        key = yield from self._up_to(">", most=MOST_KEY_CHARS)
        if key is None:
            return False
        types = argument_types(self._tools.get(self._name_of_tool), key[0])
        yield from self._argument(key[0], types, first=first)
        return True
