"""Calls as DeepSeek V3.2 writes them, in its DSML, which tells strings from other values:

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

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
    """A `CallParser` of one answer."""

    marks = (SECTION, CALL)
    value_end = PARAMETER_END
    followers = (PARAMETER, CALL_END)

    def _call(self, mark: str) -> Reading[bool]:
        if mark != CALL:
            yield from self._blanks()
            if not (yield from self._one_of(CALL)):
                return False
        if not (yield from self._one_call()):
            return False
        while True:
            yield from self._blanks()
            found = yield from self._one_of(CALL, SECTION_END)
            if found == SECTION_END:
                return True
            if not found:
                self._at = 0  # content
                return True
            if not (yield from self._one_call()):
                self._refuse(CALL)
                return True

    def _one_call(self) -> Reading[bool]:
        found = yield from self._name('">')
        if found is None or not found[0]:
            return False
        self._begin_call(found[0])
        yield from self._parameters()
        return True

    def _next_parameter(self, *, first: bool) -> Reading[bool]:
        yield from self._blanks()
        if not (yield from self._one_of(PARAMETER)):
            yield from self._one_of(CALL_END)
            return False
        key = yield from self._up_to('" string="', '">', most=MOST_KEY_CHARS)
        if key is None:
            return False
        kind = ("", "")
        if key[1] != '">':
            kind = (yield from self._up_to('">')) or kind
        types = _ANY if kind[0] == "false" else _STRING
        yield from self._argument(key[0], types, first=first)
        return True
