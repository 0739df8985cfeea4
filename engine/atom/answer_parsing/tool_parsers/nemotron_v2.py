"""Calls as Nemotron Nano 2 (a Nemotron-H) writes them, in one list:

<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
"""

from __future__ import annotations

from atom.answer_parsing.listed_calls import ListedCallParser

CALLS = "<TOOLCALL>"
CALLS_END = "</TOOLCALL>"


class NemotronV2Parser(ListedCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)
    closing = CALLS_END
