"""Calls as DeepSeek V3 and R1 write them, with the arguments in a fence:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from atom.answer_parsing.call_section import CallSection
from atom.answer_parsing.markup_parser import Reading

SECTION = "<｜tool▁calls▁begin｜>"
CALL = "<｜tool▁call▁begin｜>"
SEPARATOR = "<｜tool▁sep｜>"
CALL_END = "<｜tool▁call▁end｜>"
SECTION_END = "<｜tool▁calls▁end｜>"
MARKS = (SECTION, CALL, SEPARATOR, CALL_END, SECTION_END)
_FENCE = "```"


class DeepSeekV3Parser(CallSection):
    """A `CallParser` of one answer."""

    marks = (SECTION, CALL)
    call, call_end, section_end = CALL, CALL_END, SECTION_END

    def _head(self) -> Reading[tuple[str, str] | None]:
        kind = yield from self._up_to(SEPARATOR)
        found = None if kind is None else (yield from self._name("\n"))
        if found is None or not found[0].strip():
            return None
        yield from self._blanks()
        if (yield from self._one_of(_FENCE)):
            yield from self._one_of("json")
        return found[0].strip(), ""

    def _close(self) -> Reading[None]:
        yield from self._one_of(_FENCE)
        yield from self._blanks()
        yield from self._one_of(self.call_end)
