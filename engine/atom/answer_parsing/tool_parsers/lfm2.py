"""Calls as LFM2 writes them, in Python's notation between special tokens:

    <|tool_call_start|>[weather(city="Paris", days=3), time()]<|tool_call_end|>

A list outside these tokens is text.
"""

from __future__ import annotations

from atom.answer_parsing.tool_parsers.llama4_pythonic import Llama4PythonicParser

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
MARKS = (START, END)


class Lfm2Parser(Llama4PythonicParser):
    """A `CallParser` of one answer."""

    marks = (START,)
    closing = END
