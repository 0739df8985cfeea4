"""What an answer must keep to, as xgrammar's structural tags: calls, or another structure, behind
the reasoning that may come first.

Calls are written as the model's family writes them, so that what is enforced is what the model was
trained on. Reasoning is free; where the answer may begin with it, the structure follows it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.families import CallFormat
from atom.answer_parsing.reasoning import CLOSING, OPENING, ReasoningStart

_LINES_AFTER_REASONING = {"type": "regex", "pattern": r"\n{0,4}"}

Format = dict[str, Any]


def after_reasoning(start: ReasoningStart, structure: Format) -> dict[str, Any]:
    """The structural tag of answers that begin there. structure: a format of xgrammar's."""
    found = structure
    if start is ReasoningStart.OPEN:
        found = _sequence(_thought(""), _LINES_AFTER_REASONING, structure)
    elif start is ReasoningStart.POSSIBLE:
        thought = _sequence(_thought(OPENING), _LINES_AFTER_REASONING)
        found = _sequence({"type": "optional", "content": thought}, structure)
    return {"type": "structural_tag", "format": found}


def calls(family: CallFormat, schemas: Mapping[str, Any], *, several: bool) -> Format:
    """schemas: of the arguments, by tool. One of these is called; or several, one after the
    other."""
    tags = [
        {
            "type": "tag",
            "begin": family.opening(tool),
            "content": {**json_value(schema), "tool": tool},
            "end": family.after,
        }
        for tool, schema in schemas.items()
    ]
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": family.separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def json_value(schema: Any, *, one_line: bool = False) -> Format:
    """schema: as JSON text, which keeps its numbers exact, or the value itself."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return {"type": "json_schema", "json_schema": text, "one_line": one_line}


def _thought(opening: str) -> Format:
    return {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": CLOSING}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}
