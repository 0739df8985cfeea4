"""Calls as DeepSeek V3.1 writes them, in the section of DeepSeek V3:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
<｜tool▁calls▁end｜>
"""

from __future__ import annotations

from atom.answer_parsing.call_section import CallSection
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.tool_parsers.deepseek_v3 import (
    CALL,
    CALL_END,
    SECTION,
    SECTION_END,
    SEPARATOR,
)


class DeepSeekV31Parser(CallSection):
    """A `CallParser` of one answer."""

    marks = (SECTION, CALL)
    call, call_end, section_end = CALL, CALL_END, SECTION_END

    def _head(self) -> Reading[tuple[str, str] | None]:
        found = yield from self._name(SEPARATOR)
        if found is None or not found[0].strip():
            return None
        return found[0].strip(), ""
