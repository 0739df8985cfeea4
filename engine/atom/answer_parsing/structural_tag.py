"""The required structure of an answer, as xgrammar's structural tags: calls, or another structure,
after the optional reasoning.

Calls are written in the notation of the model's family, so the enforced structure is the one that
the model was trained on. Reasoning is free; if the answer may begin with it, the structure follows
it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atom.answer_parsing.notation import (
    ANY_TEXT,
    Format,
    json_value,
    one_of,
    optional,
    sequence,
    tag,
    text,
)
from atom.answer_parsing.reasoning_parser import THINK, ReasoningMarks, ReasoningStart
from atom.answer_parsing.tool_parsers import CallFormat, harmony

__all__ = ["after_reasoning", "calls", "calls_when_begun", "final_message", "json_value"]

_LINES_AFTER_REASONING = {"type": "regex", "pattern": r"\n{0,4}"}
_ANALYSIS = tag(harmony.ANALYSIS, ANY_TEXT, harmony.END + harmony.ASSISTANT)
_PREAMBLE = tag(
    f"{harmony.CHANNEL}commentary{harmony.MESSAGE}", ANY_TEXT, harmony.END + harmony.ASSISTANT
)


def after_reasoning(
    start: ReasoningStart,
    structure: Format,
    marks: ReasoningMarks | None = THINK,
    special_ids: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write the structural tag of answers with this start. structure: a format of xgrammar's, in
    channels with its head; marks, special_ids: as in `AnswerParsing`."""
    found = structure
    if marks is None:
        found = _after_analysis(start, structure)
    elif start is ReasoningStart.OPEN:
        found = sequence(tag("", ANY_TEXT, marks.closing), _LINES_AFTER_REASONING, structure)
    elif start is ReasoningStart.POSSIBLE:
        thought = tag(marks.opening, ANY_TEXT, marks.closing)
        found = sequence(optional(sequence(thought, _LINES_AFTER_REASONING)), structure)
    return {"type": "structural_tag", "format": with_tokens(found, special_ids or {})}


def _after_analysis(start: ReasoningStart, structure: Format) -> Format:
    if start is ReasoningStart.OPEN:
        return sequence(tag("", ANY_TEXT, harmony.END + harmony.ASSISTANT), structure)
    return (
        sequence(optional(_ANALYSIS), structure) if start is ReasoningStart.POSSIBLE else structure
    )


def final_message(start: ReasoningStart, structure: Format) -> Format:
    """Write a structure as the content of an answer in channels."""
    return structure if start is ReasoningStart.OVER else sequence(text(harmony.FINAL), structure)


def calls(family: CallFormat, schemas: Mapping[str, Any], *, several: bool) -> Format:
    """Write the structure of one call of any of the tools, or of several calls in a row. schemas:
    of the arguments, by tool.

    Raises ValueError for arguments that the family's notation cannot express.
    """
    opening, closing = family.notation.section
    found = _each_call(family, schemas, several=several)
    return sequence(text(opening), found, text(closing)) if opening else found


def _each_call(family: CallFormat, schemas: Mapping[str, Any], *, several: bool) -> Format:
    notation = family.notation
    return {
        "type": "tags_with_separator",
        "tags": [notation.call(tool, schema) for tool, schema in schemas.items()],
        "separator": notation.separator,
        "at_least_one": True,
        "stop_after_first": not several or notation.single,
    }


def calls_when_begun(family: CallFormat, schemas: Mapping[str, Any], *, several: bool) -> Format:
    """Write free text in which any text that begins like a call is a call of these tools. Raises
    ValueError as `calls`."""
    notation = family.notation
    if notation.single:
        said = sequence(text(harmony.FINAL), ANY_TEXT)
        call = calls(family, schemas, several=False)
        return sequence(optional(_PREAMBLE), one_of(said, call))
    opening, closing = notation.section
    if not family.mark:
        tags = [_bare_calls(family, schemas, tool, several=several) for tool in schemas]
    elif opening:
        tags = [tag(opening, _each_call(family, schemas, several=several), closing)]
    else:
        tags = [notation.call(tool, schema) for tool, schema in schemas.items()]
    return {
        "type": "triggered_tags",
        "triggers": [family.mark] if family.mark else [each["begin"] for each in tags],
        "tags": tags,
        "stop_after_first": not several,
    }


def _bare_calls(
    family: CallFormat, schemas: Mapping[str, Any], tool: str, *, several: bool
) -> Format:
    """Write calls without a mark, of which the first calls this tool."""
    notation = family.notation
    opening, closing = notation.section
    first = notation.call(tool, schemas[tool])
    if not opening:
        return first
    inside = [first["content"], text(first["end"])]
    if several:
        others = _each_call(family, schemas, several=True)
        inside.append(optional(sequence(text(notation.separator), others)))
    return tag(opening + first["begin"], sequence(*inside), closing)


def with_tokens(part: Any, special_ids: Mapping[str, int]) -> Any:
    """Replace the marks in a format that are special tokens by these tokens: spelled in characters
    they would be other tokens, which no model writes."""
    return _MarksAsTokens(special_ids).changed(part) if special_ids else part


class _MarksAsTokens:
    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._ids = special_ids
        longest_first = sorted(special_ids, key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def changed(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self.changed(each) for each in part]
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        if kind == "const_string":
            return sequence(*self._formats(part["value"])) if part["value"] else part
        if kind == "tag":
            return self._tag(part)
        found = {key: self.changed(value) for key, value in part.items()}
        if kind == "triggered_tags" and part["triggers"][0] in self._ids:
            del found["triggers"]
            ids = [self._ids[trigger] for trigger in part["triggers"]]
            found |= {"type": "token_triggered_tags", "trigger_tokens": ids}
        return found

    def _formats(self, written: str) -> list[Format]:
        """Split a text into formats, token by token and text by text."""
        return [
            {"type": "token", "token": self._ids[piece]} if piece in self._ids else text(piece)
            for piece in self._marks.split(written)
            if piece
        ]

    def _tag(self, part: Format) -> Format:
        content = self.changed(part["content"])
        begin, end = self._formats(part["begin"]), self._formats(part["end"])
        if content["type"] == "any_text":
            if any(each["type"] == "token" for each in end):
                return sequence(*begin, content, *end)
            return sequence(*begin, tag("", content, part["end"]))
        inner = sequence(*begin[1:], content, *end[:-1])
        return {**part, "begin": _side(begin[:1]), "content": inner, "end": _side(end[-1:])}


def _side(formats: Sequence[Format]) -> Any:
    """Return the beginning or end of a tag: a token, or a text."""
    if not formats:
        return ""
    return formats[0] if formats[0]["type"] == "token" else formats[0]["value"]
