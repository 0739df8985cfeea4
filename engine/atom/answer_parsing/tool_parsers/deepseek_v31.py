"""Calls as DeepSeek V3.1 writes them, in the section of DeepSeek V3:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
<｜tool▁calls▁end｜>
"""

from __future__ import annotations

from atom.answer_parsing.tool_parsers.deepseek_v3 import DeepSeekV3Parser


class DeepSeekV31Parser(DeepSeekV3Parser):
    """A `CallParser` of one answer: that of V3 reads both notations."""
