"""Hermes' markup for calls, which Qwen's models write:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

any number of them, behind or between text, and now and then several within the marks. What is no
such object is text. A closing mark may be missing.
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


class HermesParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (OPENING,)
    closing = CLOSING
