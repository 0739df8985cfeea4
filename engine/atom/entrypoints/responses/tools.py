"""Tools of /v1/responses to the functions that a chat may call, and back.

    function            as it is
    custom              a function of one text, `input`; its grammar is described, a regex enforced
    namespace           each of its tools by its name, or as `namespace__name` if another has the
                        same; the answer names both again
    any other type      ignored: this server runs no tools

An ignored type is reported to the client with the unknown fields, and refused if a choice forces
it. Shapes and names alone: answer_parsing defines how a call is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atom.entrypoints.openai.tools import MAX_NAME_CHARS, MAX_TOOLS
from atom.entrypoints.responses.custom_input import FIELD
from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams

_BETWEEN = "__"


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that an answer may call. name, namespace: as the client sent them."""

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Hold tools as a chat takes them. by_name: of each function, the tool of the client.
    passed_over: places of the ignored ones."""

    functions: tuple[dict[str, Any], ...] = ()
    by_name: Mapping[str, CallableTool] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def has_strict(self) -> bool:
        return any(tool["function"].get("strict") is True for tool in self.functions)

    def called(self, name: str) -> CallableTool:
        """Find the client's tool; a name that the model made up is a function's."""
        return self.by_name.get(name) or CallableTool(name)

    def name_in_history(self, name: str, namespace: str) -> str:
        """Find the name that the model knows the tool of an earlier call by."""
        return self.function_named(name, namespace) or prefixed(name, namespace)

    def function_named(self, name: str, namespace: str = "") -> str | None:
        """Find the model's name of a tool; without a namespace the only tool of that name in any.
        None if there is no such tool, or more than one."""
        for flat in (name, prefixed(name, namespace)):
            tool = self.by_name.get(flat)
            if tool is not None and (tool.name, tool.namespace) == (name, namespace):
                return flat
        if namespace:
            return None
        found = [flat for flat, tool in self.by_name.items() if tool.name == name]
        return found[0] if len(found) == 1 else None


def prefixed(name: str, namespace: str) -> str:
    return f"{namespace}{_BETWEEN}{name}" if namespace else name


def chat_tools(tools: Sequence[Mapping[str, Any]], where: str = "tools") -> ChatTools:
    """Convert tools to functions. Raises `RequestError` for an invalid tool, and for two of one
    name."""
    functions: list[dict[str, Any]] = []
    by_name: dict[str, CallableTool] = {}
    passed_over: list[str] = []
    found_tools = list(_each(tools, where))
    names = Counter(str(tool.get("name")) for _, tool, _ in found_tools)
    for place, tool, namespace in found_tools:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            passed_over.append(place)
            continue
        found = CallableTool(_name(tool, place), namespace, kind == "custom")
        name = found.name if names[found.name] == 1 else prefixed(found.name, namespace)
        if name in by_name:
            raise RequestError(
                f"{place}.name: there is another tool {name!r}; give each a name of its own",
                param="tools",
            )
        by_name[name] = found
        make = _custom_function if found.is_custom else _function
        functions.append({"type": "function", "function": make(name, tool, place)})
    if len(functions) > MAX_TOOLS:
        raise RequestError(
            f"tools: {len(functions)} with those of namespaces; at most {MAX_TOOLS}", param="tools"
        )
    return ChatTools(tuple(functions), by_name, tuple(passed_over))


def _each(
    tools: Sequence[Mapping[str, Any]], where: str
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield every tool with its place, those of namespaces with the namespace's name."""
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise RequestError(
                f"{place}.type: is required, such as function, custom or namespace", param="tools"
            )
        if kind != "namespace":
            yield place, tool, ""
            continue
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
            raise RequestError(f"{place}.tools: must be a list of tools", param="tools")
        name = _name(tool, place)
        for number, each in enumerate(inner):
            yield f"{place}.tools[{number}]", each, name


def _name(tool: Mapping[str, Any], place: str) -> str:
    name = tool.get("name")
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS:
        return name
    hint = ""
    if isinstance(tool.get("function"), dict):
        hint = "; tools of /v1/responses have their name beside their type, not within `function`"
    raise RequestError(
        f"{place}.name: must be a text of 1 to {MAX_NAME_CHARS} characters{hint}", param="tools"
    )


def _function(name: str, tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    function = {"name": name}
    for key in ("description", "parameters", "strict"):
        if tool.get(key) is not None:
            function[key] = tool[key]
    return function


def _custom_function(name: str, tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Build a function of one text. A regex is enforced if possible; a lark grammar is described,
    as every format is."""
    described = tool.get("description") or ""
    text: dict[str, Any] = {"type": "string"}
    asked = tool.get("format")
    strict = False
    if isinstance(asked, dict) and asked.get("type") == "grammar":
        syntax, definition = asked.get("syntax"), asked.get("definition")
        if syntax not in ("lark", "regex") or not isinstance(definition, str):
            raise RequestError(
                f"{place}.format: a grammar has syntax lark or regex, and its definition as a text",
                param="tools",
            )
        described = f"{described}\n\n{FIELD} must match this {syntax}:\n{definition}".strip()
        if syntax == "regex" and _is_enforced(definition):
            text["pattern"], strict = f"^(?:{definition})$", True
    parameters = {
        "type": "object",
        "properties": {FIELD: text},
        "required": [FIELD],
        "additionalProperties": False,
    }
    return {"name": name, "description": described, "parameters": parameters, "strict": strict}


def _is_enforced(regex: str) -> bool:
    try:
        schema = {"type": "string", "pattern": f"^(?:{regex})$"}
        StructuredOutputsParams(json=schema, field="tools").check_schema()
    except RequestError:
        return False
    return True


def chat_choice(choice: str | Mapping[str, Any] | None, tools: ChatTools) -> Any:
    """Translate a choice among the tools to a chat's. Raises `RequestError` for a tool that is not
    there, or that cannot be called here."""
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") != "allowed_tools":
        return _named(choice, tools, "tool_choice")
    mode, listed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise RequestError(
            "tool_choice: allowed_tools has mode auto or required, and a list of tools",
            param="tool_choice",
        )
    allowed = [
        _named(tool, tools, f"tool_choice.tools[{index}]")
        for index, tool in enumerate(listed)
        if isinstance(tool, dict) and tool.get("type") in ("function", "custom")
    ]
    if not allowed:
        raise RequestError(
            "tool_choice.tools: names no function and no custom tool, and this server runs no "
            "other; send tool_choice none",
            param="tool_choice",
        )
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}


def _named(choice: Mapping[str, Any], tools: ChatTools, place: str) -> dict[str, Any]:
    kind, name = choice.get("type"), choice.get("name")
    if kind not in ("function", "custom"):
        raise RequestError(
            f"{place}: forces a tool of type {str(kind)[:MAX_NAME_CHARS]!r}, which this server "
            f"does not run; choose a function or a custom tool, or leave it out",
            param="tool_choice",
            code="unsupported_parameter",
        )
    if not isinstance(name, str):
        raise RequestError(f"{place}.name: is required, the name of a tool", param="tool_choice")
    flat = tools.function_named(name, str(choice.get("namespace") or ""))
    if flat is None:
        known = ", ".join(map(repr, list(tools.by_name)[:8]))
        raise RequestError(
            f"{place}: there is no tool {name[:MAX_NAME_CHARS]!r} among tools ({known}); name one "
            f"of them",
            param="tool_choice",
        )
    return {"type": "function", "function": {"name": flat}}
