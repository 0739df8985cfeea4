"""Calls as DeepSeek V3 and R1 write them, with the arguments in a fence:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.call_section import CallSection
from atom.answer_parsing.markup_parser import FENCE, Reading

SECTION = "<｜tool▁calls▁begin｜>"
CALL = "<｜tool▁call▁begin｜>"
SEPARATOR = "<｜tool▁sep｜>"
CALL_END = "<｜tool▁call▁end｜>"
SECTION_END = "<｜tool▁calls▁end｜>"
MARKS = (SECTION, CALL, SEPARATOR, CALL_END, SECTION_END)


class DeepSeekV3Parser(CallSection):
    """A `CallParser` of one answer, in this notation or that of V3.1 (deepseek_v31.py): models
    write one for the other."""

    marks = (SECTION, CALL)
    call, call_end, section_ends = CALL, CALL_END, (SECTION_END,)

    def _head(self) -> Reading[tuple[str, str] | None]:
        first = yield from self._name(SEPARATOR, CALL_END)
        if first is None or first[1] == CALL_END:
            return None
        name = known_name(first[0], self._tools)
        at = self._at
        if name and ((yield from self._blanks()) in "{`<" or first[0] != "function"):
            self._at = at
            return name, ""
        self._at = at
        found = yield from self._name("\n", "{", FENCE, CALL_END)
        if found is None or not (name := known_name(found[0], self._tools)):
            return None
        self._at -= 0 if found[1] == "\n" else len(found[1])
        return name, ""
