"""The grammar of answers that must call a tool, as xgrammar's structural tag.

The call is written as the model's family writes it, so that what is enforced is what the model was
trained on; where the answer may begin with reasoning, that is free, and the call follows it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom.answer_parsing.answer_parser import AnswerParsing
from atom.answer_parsing.families import CallFormat
from atom.answer_parsing.reasoning import CLOSING, OPENING, ReasoningStart

# White space between two parts of the JSON; an answer must not be white space to its end.
_MOST_BLANKS = 10
_BLANKS_AFTER_REASONING = {"type": "regex", "pattern": r"[ \n]{0,4}"}


def forced_calls(parsing: AnswerParsing, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """parsing: of the answers, with calls. schemas: of the arguments, by tool: one of these is
    called, or several one after the other where the request allows it."""
    assert parsing.calls is not None
    calls = _calls(parsing.calls, schemas, several=parsing.several)
    found = calls
    if parsing.reasoning is not ReasoningStart.OVER:
        reasoning = _reasoning(parsing.reasoning)
        found = {"type": "sequence", "elements": [reasoning, _BLANKS_AFTER_REASONING, calls]}
    return {"type": "structural_tag", "format": found}


def _calls(family: CallFormat, schemas: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": family.opening(tool),
            "content": {
                "type": "json_schema",
                "json_schema": schema,
                "max_whitespace_cnt": _MOST_BLANKS,
            },
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


def _reasoning(start: ReasoningStart) -> dict[str, Any]:
    opening = "" if start is ReasoningStart.OPEN else OPENING
    tag = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": CLOSING}
    return tag if start is ReasoningStart.OPEN else {"type": "optional", "content": tag}
