"""Calls as MiniMax-M2 writes them: DeepSeek V3.2's structure in plain marks. The tool's schema
decides which values are strings.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>
"""

from __future__ import annotations

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.tool_parsers.deepseek_v32 import DeepSeekV32Parser

SECTION = "<minimax:tool_call>"
CALL = '<invoke name="'
PARAMETER = '<parameter name="'
PARAMETER_END = "</parameter>"
CALL_END = "</invoke>"
SECTION_END = "</minimax:tool_call>"


class MiniMaxM2Parser(DeepSeekV32Parser):
    """A `CallParser` of one answer."""

    calls = ("<invoke ",)
    section_ends = (SECTION_END,)
    marks = (SECTION,)
    value_ends = (PARAMETER_END,)
    openings: tuple[str, ...] = ("<parameter ",)
    call_ends = (CALL_END,)
    closers = section_ends
    strays = (PARAMETER_END,)

    def _types(self, key: str) -> frozenset[str]:
        return argument_types(self._tools.get(self._tool), key)
