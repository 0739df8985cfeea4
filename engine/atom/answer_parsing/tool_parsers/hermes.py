"""Hermes' markup for calls, which Qwen's models write:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

There may be any number of calls, after or between text, and sometimes several within the marks.
Text that is not such an object stays text. A closing mark may be missing.
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


class HermesParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (OPENING,)
    closing = CLOSING
