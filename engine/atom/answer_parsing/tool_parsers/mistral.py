"""Calls as Mistral's models write them, in two generations of their tokenizers:

    [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "a1B2c3D4e"}]
    [TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}

The newer one repeats its first mark for every call, and mostly has no id. Ids have nine characters;
templates refuse others.
"""

from __future__ import annotations

from atom.answer_parsing.listed_calls import ListedCallParser
from atom.answer_parsing.markup_parser import Reading

CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"
MARKS = (CALLS, CALL_ID, ARGUMENTS)
ID_CHARS = 9


class MistralParser(ListedCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)

    def _call(self, mark: str) -> Reading[bool]:
        first = yield from self._blanks()
        if first == "[":
            self._at += 1
            return (yield from self._listed())
        if first == "{":
            return (yield from self._object())
        found = yield from self._name(CALL_ID, ARGUMENTS, "{")
        if found is None or not found[0].strip():
            return False
        name, (_, end), call_id = found[0].strip(), found, ""
        if end == CALL_ID:
            written = yield from self._up_to(ARGUMENTS, "{")
            if written is None:
                return False
            call_id, end = written[0].strip(), written[1]
        self._at -= end == "{"
        self._begin_call(name, call_id)
        yield from self._json_arguments(CALLS)
        return True
