"""Calls as Granite 3 writes them, in one list without a closing mark, after a token or its text:

<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

CALLS = "<|tool_call|>"
CALLS_IN_WORDS = "<tool_call>"  # as Granite 3.1 has it


class GraniteParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS, CALLS_IN_WORDS)
