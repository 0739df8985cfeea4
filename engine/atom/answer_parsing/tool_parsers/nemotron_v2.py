"""Calls as Nemotron Nano 2 (a Nemotron-H) writes them, in one list:

<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

CALLS = "<TOOLCALL>"
CALLS_END = "</TOOLCALL>"


class NemotronV2Parser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)
    closing = CALLS_END
