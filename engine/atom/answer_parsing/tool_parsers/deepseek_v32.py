"""Calls as DeepSeek V3.2 writes them, in its DSML, which tells strings from other values:

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>

V4 has `tool_calls` in place of `function_calls`. Models leave the sign of the DSML out of marks now
and then, write attributes in another order, or write the arguments as JSON.
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.argument_types import argument_types
from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import Parameter, ParameterParser
from atom.answer_parsing.xml_tags import TagReader, attributes_of

DSML = "｜DSML｜"
SECTION = f"<{DSML}function_calls>"
SECTION_OF_V4 = f"<{DSML}tool_calls>"
CALL = f'<{DSML}invoke name="'
PARAMETER = f'<{DSML}parameter name="'
PARAMETER_END = f"</{DSML}parameter>"
CALL_END = f"</{DSML}invoke>"
SECTION_END = f"</{DSML}function_calls>"
SECTION_OF_V4_END = f"</{DSML}tool_calls>"
_STRING = frozenset({"string"})
_ANY: frozenset[str] = frozenset()


class DeepSeekV32Parser(TagReader, ParameterParser):
    """A `CallParser` of one answer. calls: begin each call, up to its attributes; section_ends:
    after all calls."""

    calls: ClassVar[tuple[str, ...]] = (f"<{DSML}invoke ",)
    section_ends: ClassVar[tuple[str, ...]] = (SECTION_END, SECTION_OF_V4_END)
    marks: tuple[str, ...] = (SECTION, SECTION_OF_V4, f"<{DSML}invoke ")
    value_ends: tuple[str, ...] = (PARAMETER_END, "</parameter>")
    openings: tuple[str, ...] = (f"<{DSML}parameter ", "<parameter ")
    call_ends = (CALL_END,)
    closers = section_ends
    strays: ClassVar[tuple[str, ...]] = (PARAMETER_END, "</parameter>")

    def _call(self, mark: str) -> Reading[bool]:
        sectioned = mark not in self.calls
        if sectioned:
            yield from self._blanks()
            if not (yield from self._one_of(*self.calls)):
                return False
        if not (yield from self._one_call()):
            return False
        while True:
            if not sectioned:
                self._owe(*self.call_ends)
            end = self._at
            yield from self._blanks()
            found = yield from self._one_of(*self.calls, *self.section_ends)
            if found in self.section_ends:
                self._owe()
                yield from self._pass_again(found)
                return True
            if not found:
                self._at = end  # content
                return True
            if not (yield from self._one_call()):
                self._refuse(found)
                return True

    def _one_call(self) -> Reading[bool]:
        head = yield from self._tag_head(tuple(self._tools))
        name = known_name(head, self._tools) if head else ""
        return bool(name) and (yield from self._body(name))

    def _parameter(self) -> Reading[Parameter | None]:
        if not (yield from self._one_of(*self.openings)):
            return None
        schema = self._tools.get(self._tool)
        key = yield from self._tag_key(schema)
        return Parameter(key, self._types(key)) if key else None

    def _types(self, key: str) -> frozenset[str]:
        """Return the types of the value after this tag."""
        string = attributes_of(self._tag).get("string")
        if string is None:
            return argument_types(self._tools.get(self._tool), key) or _STRING
        return _ANY if string == "false" else _STRING
