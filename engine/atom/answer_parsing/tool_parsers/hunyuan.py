"""Calls as Hunyuan's models write them, in one list:

<tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}}]</tool_calls>
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

CALLS = "<tool_calls>"
CALLS_END = "</tool_calls>"


class HunyuanParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)
    closing = CALLS_END
