"""Calls as Mistral's models write them, in two generations of their tokenizers:

    [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "a1B2c3D4e"}]
    [TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}

The newer one repeats its first mark for every call, and mostly has no id. Ids have nine characters;
templates refuse others.
"""

from __future__ import annotations

from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.markup_parser import Reading
from atom.answer_parsing.object_calls import ObjectCallParser

CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"
MARKS = (CALLS, CALL_ID, ARGUMENTS)
ID_CHARS = 9


class MistralParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)

    def _call(self, mark: str) -> Reading[bool]:
        if (yield from self._blanks()) in "[{`" and not (yield from self._one_of(CALL_ID)):
            return (yield from self._objects())
        found = yield from self._name(CALL_ID, ARGUMENTS, "{")
        name = "" if found is None else known_name(found[0], self._tools)
        if found is None or not name:
            return False
        (_, end), call_id = found, ""
        if end == CALL_ID:
            written = yield from self._up_to(ARGUMENTS, "{")
            if written is None:
                return False
            call_id, end = written[0].strip(), written[1]
        self._at -= end == "{"
        if not (yield from self._json_arguments(name, call_id, CALLS)):
            return False
        end_of_call = self._at
        yield from self._pass_more_objects()
        self._at = max(end_of_call, self._at)
        return True
