"""Calls as Qwen3-Coder and Qwen3.5 write them, with each argument on separate lines:

    <tool_call>
    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Models sometimes forget the first mark, so the second one begins a call too, if its tool exists.
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import Parameter, ParameterParser
from atom.answer_parsing.xml_tags import TagReader

CALL = "<tool_call>"
FUNCTION = "<function="
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
FUNCTION_END = "</function>"
CALL_END = "</tool_call>"
_FUNCTIONS = (FUNCTION, "<function ")
_PARAMETERS = (PARAMETER, "<parameter ")


class Qwen3CoderParser(TagReader, ParameterParser):
    """A `CallParser` of one answer. call, closing: around each call."""

    call: ClassVar[str] = CALL
    closing = CALL_END
    marks = (CALL, FUNCTION)
    value_ends = (PARAMETER_END,)
    openings: tuple[str, ...] = _PARAMETERS
    call_ends = (FUNCTION_END,)
    closers = (CALL_END,)
    strays = (PARAMETER_END,)
    lines = True

    def _call(self, mark: str) -> Reading[bool]:
        if mark == self.call:
            if (yield from self._blanks()) in "{[":
                return (yield from self._objects())
            if not (yield from self._one_of(*_FUNCTIONS)):
                return False
        found = yield from self._tag_head(tuple(self._tools))
        name = known_name(found, self._tools) if found else ""
        if not name or not (yield from self._body(name)):
            return False
        end = self._at
        yield from self._blanks()
        if (yield from self._one_of(self.closing)):
            self._owe()
            yield from self._pass_again(self.closing)
        else:
            self._at = end
        return True

    def _parameter(self) -> Reading[Parameter | None]:
        if not (yield from self._one_of(*_PARAMETERS)):
            return None
        schema = self._tools.get(self._tool)
        key = yield from self._tag_key(schema)
        return Parameter(key, argument_types(schema, key)) if key else None
