"""Tools and tool calls as clients send them, and which of the tools an answer may or must call.

Shapes and their errors. A tool is passed to the chat template as it was sent, so it stays a plain
value here. answer_parsing and chat_structure.py define how a call is written and enforced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from atom.entrypoints.request_fields.request_body import StrictModel
from atom.errors import RequestError

MAX_TOOLS = 128
MAX_NAME_CHARS = 256

_TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function", "description": "Always function."},
        "function": {
            "type": "object",
            "description": "What the model is told of the function.",
            "properties": {
                "name": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_NAME_CHARS,
                    "description": "By which an answer calls it.",
                },
                "description": {
                    "type": ["string", "null"],
                    "description": "What it does, for the model.",
                },
                "parameters": {
                    "type": ["object", "null"],
                    "description": "JSON schema of its arguments.",
                },
                "strict": {
                    "type": ["boolean", "null"],
                    "description": "Calls of it are made to fit the schema.",
                },
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}


class FunctionCall(StrictModel):
    name: str
    """Name of one of the tools."""
    arguments: Any = ""
    """JSON text with the arguments, as the model wrote it."""


class ToolCall(StrictModel):
    id: str | None = None
    """By which the message with the result names the call."""
    type: Literal["function"] = "function"
    """Always function."""
    function: FunctionCall
    """Which function is called, and with what."""


class FunctionName(StrictModel):
    name: str
    """Its name."""


class NamedTool(StrictModel):
    """Name the only tool that an answer must call."""

    type: Literal["function"] = "function"
    """function: one tool by its name."""
    function: FunctionName
    """The tool that is called."""


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    """auto: one may be called; required: one is."""
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]
    """These tools."""


class AllowedChoice(StrictModel):
    """A choice among the tools that an answer may call, or of which it must call one."""

    type: Literal["allowed_tools"]
    """allowed_tools: a choice among several tools."""
    allowed_tools: AllowedTools
    """Tools that may be called out of those that are sent."""


def _kind_of_choice(value: Any) -> str:
    if isinstance(value, str):
        return "<word>"
    allowed = isinstance(value, dict) and value.get("type") == "allowed_tools"
    return "<allowed>" if allowed else "<tool>"


_ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[AllowedChoice, Tag("<allowed>")]
    | Annotated[NamedTool, Tag("<tool>")],
    Discriminator(_kind_of_choice),
]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an answer may call. parameters: JSON schema of the arguments; None for a tool
    that takes none. place: of the tool in the request, for errors. strict: its calls fit the
    schema."""

    name: str
    parameters: dict[str, Any] | None
    place: str
    strict: bool = False


class ToolFields(StrictModel):
    """The fields about tools of a chat and of its tokenisation."""

    tools: (
        Annotated[
            list[Annotated[dict[str, Any], WithJsonSchema(_TOOL_SCHEMA)]],
            Field(max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    """Functions that the answer may call; they go to the chat template as they are sent."""
    tool_choice: _ToolChoice | None = None
    """auto: the model decides; none: no call; required: a call; or the tool to call."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in an answer."""

    @property
    def forces_call(self) -> bool:
        return self.choice_mode == "required" or self.names_tool

    @property
    def choice_mode(self) -> str | None:
        """Return tool_choice if it is a word; None if it names a tool, or is absent."""
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return choice.allowed_tools.mode
        return choice if isinstance(choice, str) else None

    @property
    def allowed_names(self) -> tuple[str, ...] | None:
        """List the names of tools that may be called; None for all of them."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return (choice.function.name,)
        if isinstance(choice, AllowedChoice):
            return tuple(dict.fromkeys(tool.function.name for tool in choice.allowed_tools.tools))
        return None

    @property
    def names_tool(self) -> bool:
        return isinstance(self.tool_choice, NamedTool)

    def callable_tools(self) -> tuple[Tool, ...]:
        """List the tools that an answer may call. Raises `RequestError` for an invalid tool, and
        for a choice among the tools that cannot be enforced."""
        tools = _checked(self.tools or ())
        if self.tool_choice == "none":
            return ()
        if self.forces_call and not tools:
            raise RequestError(
                "tool_choice: asks for a call, but there are no tools; send tools, or leave it out",
                param="tool_choice",
            )
        if self.allowed_names is None:
            return tools
        known = {tool.name: tool for tool in tools}
        for name in self.allowed_names:
            if name not in known:
                raise _no_such_tool(name, list(known))
        return tuple(known[name] for name in self.allowed_names)


def _no_such_tool(name: str, known: list[str]) -> RequestError:
    listed = ", ".join(map(repr, known[:8]))
    return RequestError(
        f"tool_choice: there is no tool {name[:MAX_NAME_CHARS]!r} among tools ({listed}"
        f"{', …' if len(known) > 8 else ''}); name one of them",
        param="tool_choice",
    )


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
    return Tool(name, parameters, place, function.get("strict") is True)


def _is_text(name: str) -> bool:
    return not any(sign < " " or "\ud800" <= sign <= "\udfff" for sign in name)
