"""An answer that must call a tool (tool_choice required, or one by name): what the engine is asked
to keep to, and what of the tools' schemas it cannot.

The schemas are bounded and checked as every other that a client sends. Called by start_chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.structural_tag import forced_calls
from atom.entrypoints.openai.tools import Tool
from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams
from atom.structured_outputs.params import MAX_SCHEMA_CHARS

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_TELLS_TYPE = ("type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf")


def forced_calls_params(parsing: AnswerParsing, tools: Sequence[Tool]) -> StructuredOutputsParams:
    """parsing: of the answers; tools: one of which they must call. Raises `RequestError` naming the
    tool whose schema would not be kept to."""
    schemas = {tool.name: _schema_of(tool) for tool in tools}
    text = json.dumps(forced_calls(parsing, schemas), ensure_ascii=False)
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
