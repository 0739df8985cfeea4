"""Calls as Kimi K2 writes them. Its ids have the tool's name and the call's number in them, and go
back into the prompt.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>
    {"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from atom.answer_parsing.call_section import CallSection
from atom.answer_parsing.markup_parser import Reading

SECTION = "<|tool_calls_section_begin|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
CALL_END = "<|tool_call_end|>"
SECTION_END = "<|tool_calls_section_end|>"
MARKS = (SECTION, CALL, ARGUMENTS, CALL_END, SECTION_END)
_ID = re.compile(r"(?:functions\.)?(.+?)(?::(\d+))?", re.DOTALL)


class KimiK2Parser(CallSection):
    """A `CallParser` of one answer."""

    marks = (SECTION, CALL)
    call, call_end, section_end = CALL, CALL_END, SECTION_END

    def _head(self) -> Reading[tuple[str, str] | None]:
        found = yield from self._up_to(ARGUMENTS)
        matched = None if found is None else _ID.fullmatch(found[0].strip())
        if matched is None:
            return None
        name, number = matched.groups()
        return name, f"functions.{name}:{number or self._found.count}"
