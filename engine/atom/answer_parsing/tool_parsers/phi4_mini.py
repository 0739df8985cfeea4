"""Calls as Phi-4-mini writes them, in one list without a closing mark:

functools[{"name": "weather", "arguments": {"city": "Paris"}}]
"""

from __future__ import annotations

from atom.answer_parsing.object_calls import ObjectCallParser

CALLS = "functools"


class Phi4MiniParser(ObjectCallParser):
    """A `CallParser` of one answer."""

    marks = (CALLS,)
