"""Calls as Kimi K2 writes them. Its ids have the tool's name and the call's number in them, and go
back into the prompt.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>
    {"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.call_section import CallSection
from atom.answer_parsing.markup_parser import Reading

SECTION = "<|tool_calls_section_begin|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
CALL_END = "<|tool_call_end|>"
SECTION_END = "<|tool_calls_section_end|>"
# As models write them now and then.
SECTION_OF_ONE = "<|tool_call_section_begin|>"
SECTION_OF_ONE_END = "<|tool_call_section_end|>"
MARKS = (SECTION, CALL, ARGUMENTS, CALL_END, SECTION_END)
_ID = re.compile(r"(?:functions\.)?(.+?)(?::(\d+))?", re.DOTALL)


class KimiK2Parser(CallSection):
    """A `CallParser` of one answer."""

    marks = (SECTION, SECTION_OF_ONE, CALL)
    call, call_end = CALL, CALL_END
    section_ends = (SECTION_END, SECTION_OF_ONE_END)

    def _head(self) -> Reading[tuple[str, str] | None]:
        found = yield from self._up_to(ARGUMENTS, CALL_END, "{")
        matched = None if found is None else _ID.fullmatch(found[0].strip())
        if found is None or matched is None:
            return None
        if found[1] != ARGUMENTS:
            self._at -= len(found[1])
        written, number = matched.groups()
        name = known_name(written, self._tools)
        return (name, f"functions.{name}:{number or self._found.count}") if name else None
