"""Calls as MiniMax-M2 writes them: DeepSeek V3.2's shape in plain marks. The tool's schema says
which values are strings.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>
"""

from __future__ import annotations

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS
from atom.answer_parsing.tool_parsers.deepseek_v32 import DeepSeekV32Parser

SECTION = "<minimax:tool_call>"
CALL = '<invoke name="'
PARAMETER = '<parameter name="'
PARAMETER_END = "</parameter>"
CALL_END = "</invoke>"
SECTION_END = "</minimax:tool_call>"


class MiniMaxM2Parser(DeepSeekV32Parser):
    """A `CallParser` of one answer."""

    section, call, call_end, section_end = SECTION, CALL, CALL_END, SECTION_END
    parameter = PARAMETER
    marks = (SECTION,)
    value_end = PARAMETER_END
    followers = (PARAMETER, CALL_END)

    def _key(self) -> Reading[tuple[str, frozenset[str]] | None]:
        found = yield from self._up_to('">', most=MOST_KEY_CHARS)
        if found is None:
            return None
        return found[0], argument_types(self._tools.get(self._name_of_tool), found[0])
