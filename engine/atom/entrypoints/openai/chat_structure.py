"""What the engine is asked to keep a chat's answers to: a forced call (tool_choice required, or a
tool by name), or the client's own structure; where the model reasons, behind its reasoning.

Tools' schemas are bounded and checked as every other that a client sends. Called by start_chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.structural_tag import after_reasoning, calls, json_value
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.openai.tools import Tool
from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams
from atom.structured_outputs.params import MAX_SCHEMA_CHARS

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_TELLS_TYPE = ("type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf")


def chat_structure(
    asked: StructuredOutputsParams | None,
    request: ChatCompletionRequest,
    parsing: AnswerParsing | None,
    tools: Sequence[Tool],
) -> StructuredOutputsParams | None:
    """Choose the structure that a chat answer must keep to. asked: the client's own; tools: that
    may be called. Raises `RequestError`."""
    if not request.forces_call:
        return asked if asked is None or parsing is None else _behind_reasoning(asked, parsing)
    if asked is not None or parsing is None:
        field = "structured output" if asked is None else asked.field
        raise RequestError(
            f"tool_choice and {field} both ask for a structure; send one of them",
            param="tool_choice",
        )
    return _forced_call(parsing, tools)


def _behind_reasoning(
    asked: StructuredOutputsParams, parsing: AnswerParsing
) -> StructuredOutputsParams:
    asked.check_schema()  # as its own: a structural tag's schemas are not looked at again
    spec = asked.spec()
    structure: dict[str, Any] = {"type": "grammar", "grammar": spec.text}
    if spec.kind == "json":
        structure = json_value(spec.text, one_line=spec.compact)
    elif spec.kind == "structural_tag":
        structure = json.loads(spec.text)["format"]
    elif spec.kind == "regex":
        structure = {"type": "regex", "pattern": spec.text}
    text = json.dumps(after_reasoning(parsing.reasoning, structure), ensure_ascii=False)
    return StructuredOutputsParams(structural_tag=text, field=asked.field)


def _forced_call(parsing: AnswerParsing, tools: Sequence[Tool]) -> StructuredOutputsParams:
    """Write the structure of an answer that must call a tool. parsing: of the answers; tools: one
    of which they must call. Raises `RequestError` naming the tool whose schema would not be kept
    to."""
    schemas = {tool.name: _schema_of(tool) for tool in tools}
    assert parsing.calls is not None
    structure = calls(parsing.calls, schemas, several=parsing.several)
    text = json.dumps(after_reasoning(parsing.reasoning, structure), ensure_ascii=False)
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestError(
            f"tools: their schemas together have {len(text)} characters; at most "
            f"{MAX_SCHEMA_CHARS} are compiled for a forced call; name one tool in tool_choice, or "
            f"send fewer",
            param="tools",
        )
    return StructuredOutputsParams(structural_tag=text, field="tools")


def _schema_of(tool: Tool) -> dict[str, Any]:
    place = f"{tool.place}.function.parameters"
    if tool.parameters is None:
        return _NO_ARGUMENTS
    schema = tool.parameters
    if not any(keyword in schema for keyword in _TELLS_TYPE):
        schema = {"type": "object", **schema}
    if schema.get("type", "object") != "object":
        raise RequestError(f"{place}: arguments are an object; give it type object", param="tools")
    try:
        StructuredOutputsParams(json=schema, field=place).check_schema()
    except RequestError as error:
        error.param = "tools"
        raise
    return schema
