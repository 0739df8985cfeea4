"""Tools and tool calls as clients send them, and which of the tools an answer may or must call.

Shapes and what is wrong with them. A tool goes to the chat template as it was sent, so it stays a
plain value here. How a call is written, and how it is enforced, is answer_parsing's and
chat_structure.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from atom.errors import RequestError

MAX_TOOLS = 128
MAX_NAME_CHARS = 256

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}


class FunctionCall(BaseModel):
    model_config = _STRICT
    name: str
    arguments: Any = ""  # whatever a model wrote, or a client made of it


class ToolCall(BaseModel):
    model_config = _STRICT
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class FunctionName(BaseModel):
    model_config = _STRICT
    name: str


class NamedTool(BaseModel):
    """The one tool that an answer must call."""

    model_config = _STRICT
    type: Literal["function"] = "function"
    function: FunctionName


def _kind_of_choice(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<tool>"


_ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedTool, Tag("<tool>")],
    Discriminator(_kind_of_choice),
]


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: JSON schema of the arguments; None for a tool that takes none. place: of the tool
    in the request, for errors."""

    name: str
    parameters: dict[str, Any] | None
    place: str


class ToolFields(BaseModel):
    """The fields about tools of a chat and of its tokenisation."""

    model_config = _STRICT

    tools: (
        Annotated[
            list[Annotated[dict[str, Any], WithJsonSchema(_TOOL_SCHEMA)]],
            Field(max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def forces_call(self) -> bool:
        return self.tool_choice == "required" or self.names_tool

    @property
    def names_tool(self) -> bool:
        return isinstance(self.tool_choice, NamedTool)

    def callable_tools(self) -> tuple[Tool, ...]:
        """What an answer may call. Raises `RequestError` for what is no tool, and for a choice
        among the tools that cannot be kept."""
        tools = _checked(self.tools or ())
        if self.tool_choice == "none":
            return ()
        if self.forces_call and not tools:
            raise RequestError(
                "tool_choice: asks for a call, but there are no tools; send tools, or leave it out",
                param="tool_choice",
            )
        if not isinstance(self.tool_choice, NamedTool):
            return tools
        name = self.tool_choice.function.name
        named = tuple(tool for tool in tools if tool.name == name)
        if not named:
            known = ", ".join(repr(tool.name) for tool in tools[:8])
            raise RequestError(
                f"tool_choice: there is no tool {name[:MAX_NAME_CHARS]!r} among tools ({known}"
                f"{', …' if len(tools) > 8 else ''}); name one of them",
                param="tool_choice",
            )
        return named


def _checked(tools: Any) -> tuple[Tool, ...]:
    found: dict[str, Tool] = {}
    for index, value in enumerate(tools):
        tool = _tool_of(value, f"tools[{index}]")
        if tool.name in found:
            raise RequestError(
                f"tools[{index}].function.name: there is another tool {tool.name!r}; give each a "
                f"name of its own",
                param="tools",
            )
        found[tool.name] = tool
    return tuple(found.values())


def _tool_of(value: dict[str, Any], place: str) -> Tool:
    if value.get("type", "function") != "function":
        raise RequestError(
            f"{place}.type: only tools of type function can be called here; leave the others out",
            param="tools",
        )
    function = value.get("function")
    if not isinstance(function, dict):
        raise RequestError(
            f"{place}.function: is required, an object with name and parameters", param="tools"
        )
    name = function.get("name")
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and _is_text(name)):
        raise RequestError(
            f"{place}.function.name: must be a text of 1 to {MAX_NAME_CHARS} characters",
            param="tools",
        )
    parameters = function.get("parameters")
    if not (parameters is None or isinstance(parameters, dict)):
        raise RequestError(
            f"{place}.function.parameters: must be a JSON schema, as an object", param="tools"
        )
    return Tool(name, parameters, place)


def _is_text(name: str) -> bool:
    return not any(sign < " " or "\ud800" <= sign <= "\udfff" for sign in name)
