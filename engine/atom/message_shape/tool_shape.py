"""Tools in the form, and at the place, in which a chat template shows them.

A tool has a description and parameters if its client sent some, which templates need not expect;
and templates read tools from a variable, from the system's message, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any

from atom.message_shape.contents import Message, joined

Tools = Sequence[Mapping[str, Any]]


class ToolPlace(Enum):
    """Places of tools. VARIABLE: a variable of the template. SYSTEM_KEY: the key `tools` of the
    system's message. SYSTEM_TEXT: in the system's text, since the template does not show tools."""

    VARIABLE = auto()
    SYSTEM_KEY = auto()
    SYSTEM_TEXT = auto()


class Filled(IntEnum):
    """Additions to tools. FIELDS: a missing description and missing parameters. PROPERTIES: type,
    description and items, throughout the parameters. DESCRIBED: the parameters are written into the
    description, since the template cannot show them."""

    AS_SENT = 0
    FIELDS = 1
    PROPERTIES = 2
    DESCRIBED = 3


@dataclass(frozen=True, slots=True)
class ToolShape:
    """The tools that a template shows. name: of the variable. bare: functions without their
    wrapping. as_text: all tools as one JSON text. filled: the least additions. calls: an example of
    a call, for tools in the system's text. none: the value without tools."""

    place: ToolPlace = ToolPlace.VARIABLE
    name: str = "tools"
    bare: bool = False
    as_text: bool = False
    filled: Filled = Filled.AS_SENT
    calls: str = ""
    none: tuple[()] | None = None

    def placed(
        self, messages: Sequence[Message], tools: Tools | None, filled: Filled
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Give the messages, and the variables, by which the template shows the tools."""
        if not tools:
            return messages, {"tools": self.none}
        found: list[Any] = [_complete(tool, max(filled, self.filled)) for tool in tools]
        if self.place is ToolPlace.SYSTEM_TEXT:
            return _told(messages, "content", self._text(found)), {}
        if self.bare:
            found = [tool.get("function", tool) for tool in found]
        value: Any = json.dumps(found, ensure_ascii=False) if self.as_text else found
        if self.place is ToolPlace.SYSTEM_KEY:
            return _told(messages, "tools", value), {}
        return messages, {self.name: value}

    def _text(self, tools: Sequence[Any]) -> str:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        how = f"\n\nTo call a function, write:\n{self.calls}" if self.calls else ""
        return f"# Tools\n\nYou may call these functions, one a line:\n{lines}{how}"


def _told(messages: Sequence[Message], key: str, value: Any) -> list[Message]:
    """Add to the system's first message, which is made if there is none."""
    if not messages or messages[0].get("role") != "system":
        messages = [{"role": "system", "content": ""}, *messages]
    head = messages[0]
    told = joined(head.get("content"), value) if key == "content" else value
    return [{**head, key: told}, *messages[1:]]


def _complete(tool: Mapping[str, Any], filled: Filled) -> dict[str, Any]:
    """Return a tool without nulls, and with the additions."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    made = {key: value for key, value in function.items() if value is not None}
    if filled >= Filled.FIELDS:
        made = {"name": made.get("name"), "description": "", **made}
        made.setdefault("parameters", {})
        if isinstance(made["parameters"], Mapping):
            made["parameters"] = {"type": "object", "properties": {}, **made["parameters"]}
    if filled is Filled.PROPERTIES:
        made["parameters"] = _filled_schema(made["parameters"], 0)
    if filled is Filled.DESCRIBED:
        schema = json.dumps(made["parameters"], ensure_ascii=False)
        made["description"] = f"{made['description']}\nParameters as JSON schema: {schema}".strip()
        made["parameters"] = {"type": "object", "properties": {}, "required": []}
    return {**tool, "type": "function", "function": made}


_MOST_DEPTH = 64


def _filled_schema(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return schema
    made = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        made["properties"] = {
            key: _filled_property(value, depth + 1) for key, value in properties.items()
        }
        if not isinstance(made.get("required"), list):
            made["required"] = []
    if made.get("type") == "array":
        made["items"] = _filled_property(made.get("items", {}), depth + 1)
    return made


def _filled_property(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        schema = {}
    made = {"type": _type_of(schema), "description": "", **schema}
    return _filled_schema(made, depth)


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return a type for a schema without one, for templates alone: that of its values, else any."""
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return "string"
    return "object" if "properties" in schema else "array" if "items" in schema else "any"
