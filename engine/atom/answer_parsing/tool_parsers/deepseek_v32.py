"""Calls as DeepSeek V3.2 writes them, in its DSML, which tells strings from other values:

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

from typing import ClassVar

from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.parameter_parser import MOST_KEY_CHARS, ParameterParser

DSML = "｜DSML｜"
SECTION = f"<{DSML}function_calls>"
CALL = f'<{DSML}invoke name="'
PARAMETER = f'<{DSML}parameter name="'
PARAMETER_END = f"</{DSML}parameter>"
CALL_END = f"</{DSML}invoke>"
SECTION_END = f"</{DSML}function_calls>"
_STRING = frozenset({"string"})
_ANY: frozenset[str] = frozenset()


class DeepSeekV32Parser(ParameterParser):
    """A `CallParser` of one answer. section, section_end: around all calls; call, call_end: around
    each; parameter: before a key."""

    section: ClassVar[str] = SECTION
    call: ClassVar[str] = CALL
    parameter: ClassVar[str] = PARAMETER
    call_end: ClassVar[str] = CALL_END
    section_end: ClassVar[str] = SECTION_END
    marks: tuple[str, ...] = (SECTION, CALL)
    value_end = PARAMETER_END
    followers = (PARAMETER, CALL_END)

    def _call(self, mark: str) -> Reading[bool]:
        if mark != self.call:
            yield from self._blanks()
            if not (yield from self._one_of(self.call)):
                return False
        if not (yield from self._one_call()):
            return False
        while True:
            yield from self._blanks()
            found = yield from self._one_of(self.call, self.section_end)
            if found == self.section_end:
                return True
            if not found:
                self._at = 0  # content
                return True
            if not (yield from self._one_call()):
                self._refuse(self.call)
                return True

    def _one_call(self) -> Reading[bool]:
        found = yield from self._name('">')
        if found is None or not found[0]:
            return False
        self._begin_call(found[0])
        self._name_of_tool = found[0]
        yield from self._parameters()
        return True

    def _next_parameter(self, *, first: bool) -> Reading[bool]:
        yield from self._blanks()
        if not (yield from self._one_of(self.parameter)):
            yield from self._one_of(self.call_end)
            return False
        found = yield from self._key()
        if found is None:
            return False
        yield from self._argument(*found, first=first)
        return True

    def _key(self) -> Reading[tuple[str, frozenset[str]] | None]:
        """Pass a parameter's key and what stands before its value; key and kinds of the value."""
        key = yield from self._up_to('" string="', '">', most=MOST_KEY_CHARS)
        if key is None:
            return None
        kind = ("", "")
        if key[1] != '">':
            kind = (yield from self._up_to('">')) or kind
        return key[0], _ANY if kind[0] == "false" else _STRING
