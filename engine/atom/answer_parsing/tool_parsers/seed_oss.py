"""Calls as Seed-OSS writes them: Qwen3-Coder's notation with other marks, and values without line
breaks around them.

    <seed:tool_call>
    <function=weather>
    <parameter=city>Paris</parameter>
    </function>
    </seed:tool_call>
"""

from __future__ import annotations

from atom.answer_parsing.tool_parsers.qwen3_coder import FUNCTION, Qwen3CoderParser

CALL = "<seed:tool_call>"
CALL_END = "</seed:tool_call>"


class SeedOssParser(Qwen3CoderParser):
    """A `CallParser` of one answer."""

    call, closing = CALL, CALL_END
    marks = (CALL, FUNCTION)
    closers = (CALL_END,)
    lines = False
