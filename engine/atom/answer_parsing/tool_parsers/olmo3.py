"""Calls as OLMo 3 writes them, in Python's notation, each on a separate line:

<function_calls>weather(city="Paris", days=3)
time()</function_calls>
"""

from __future__ import annotations

from atom.answer_parsing.tool_parsers.llama4_pythonic import Llama4PythonicParser

SECTION = "<function_calls>"
SECTION_END = "</function_calls>"


class Olmo3Parser(Llama4PythonicParser):
    """A `CallParser` of one answer."""

    marks = (SECTION,)
    closing = SECTION_END
