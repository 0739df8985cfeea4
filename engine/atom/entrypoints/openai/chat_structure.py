"""What the engine is asked to keep a chat's answers to: a forced call (tool_choice required, or a
tool by name), calls that fit the schemas of tools that are strict, or the client's own structure;
where the model reasons, behind its reasoning.

Tools' schemas are bounded and checked as every other that a client sends. Called by start_chat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.notation import Format, one_of, text
from atom.answer_parsing.structural_tag import (
    after_reasoning,
    calls,
    calls_when_begun,
    final_message,
    json_value,
)
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
        if asked is not None:
            return asked if parsing is None else _behind_reasoning(asked, parsing)
        strict = parsing is not None and parsing.calls is not None and any(t.strict for t in tools)
        return _strict_calls(parsing, tools) if strict and parsing is not None else None
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
    elif spec.kind == "choice":
        structure = one_of(*map(text, json.loads(spec.text)))
    elif spec.kind == "regex":
        structure = {"type": "regex", "pattern": spec.text}
    if parsing.marks is None:
        structure = final_message(parsing.reasoning, structure)
    return StructuredOutputsParams(structural_tag=_tag(parsing, structure), field=asked.field)


def _forced_call(parsing: AnswerParsing, tools: Sequence[Tool]) -> StructuredOutputsParams:
    """Write the structure of an answer that must call a tool. parsing: of the answers; tools: one
    of which they must call. Raises `RequestError` naming the tool whose schema would not be kept
    to."""
    assert parsing.calls is not None
    return _calls(parsing, {tool.name: _schema_of(tool) for tool in tools}, calls)


def _strict_calls(parsing: AnswerParsing, tools: Sequence[Tool]) -> StructuredOutputsParams:
    """Allow the answer to call a tool, by the tool's schema if it is strict."""
    assert parsing.calls is not None
    schemas = {
        tool.name: _schema_of(tool) if tool.strict else _any_arguments(tool) for tool in tools
    }
    return _calls(parsing, schemas, calls_when_begun)


def _calls(
    parsing: AnswerParsing, schemas: dict[str, dict[str, Any]], write: Callable[..., Format]
) -> StructuredOutputsParams:
    try:
        structure = write(parsing.calls, schemas, several=parsing.several)
    except ValueError as error:
        raise RequestError(f"tools: {error}", param="tools") from None
    text = _tag(parsing, structure)
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestError(
            f"tools: their schemas together have {len(text)} characters; at most "
            f"{MAX_SCHEMA_CHARS} are compiled for calls that must fit them; name one tool in "
            f"tool_choice, or send fewer",
            param="tools",
        )
    return StructuredOutputsParams(structural_tag=text, field="tools")


def _tag(parsing: AnswerParsing, structure: Format) -> str:
    tag = after_reasoning(parsing.reasoning, structure, parsing.marks, parsing.special_ids)
    return json.dumps(tag, ensure_ascii=False)


def _any_arguments(tool: Tool) -> dict[str, Any]:
    properties = (tool.parameters or {}).get("properties")
    names = properties if isinstance(properties, dict) else {}
    return {"type": "object", "properties": {key: {} for key in names}}


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
