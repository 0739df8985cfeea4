"""Converts a conversation of the Messages API to the chat request that the rest of the server uses.

Blocks become messages: each tool result is one message, before the user's text of the same turn;
the assistant's thinking is its reasoning; system messages within the conversation keep their place
(message_shape.py moves them if a template has no place for them). Parts that change from turn to
turn and mean nothing to the model are left out, so that the next prompt begins with this one. Pure.
Raises `RequestError` for parts that cannot be kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.entrypoints.anthropic.protocol import (
    IMAGE,
    ContentBlock,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessagesToolChoice,
    ResultBlock,
    ToolChange,
    ToolDefinition,
    not_taken,
)
from atom.entrypoints.anthropic.sealed_thinking import unsealed
from atom.entrypoints.openai.image_parts import image_part
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    TextPart,
    Thinking,
    UnreadPart,
)
from atom.entrypoints.openai.structured import JsonSchemaFormat, ResponseFormat
from atom.entrypoints.openai.tools import FunctionCall, FunctionName, NamedTool, ToolCall
from atom.entrypoints.request_fields.unread_parts import words_for
from atom.errors import RequestError

# Claude Code begins its system prompt with a line that changes from request to request.
_BILLING_LINE = "x-anthropic-billing-header:"
# Templates with efforts know these; any effort above high maps to the highest.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class _Reading:
    """The surroundings of a block. tools: by name; images: the model reads images."""

    tools: Mapping[str, dict[str, Any]]
    images: bool


def chat_request_of(request: CountTokensRequest, *, images: bool = False) -> ChatCompletionRequest:
    """Make a chat of a conversation and all that is asked of its answer. images: the model reads
    images. Raises `RequestError`."""
    tools = _tools_of(request)
    messages = [*_system_of(request), *_messages_of(request, _Reading(tools, images))]
    fields: dict[str, Any] = {"model": request.model, "messages": messages}
    if tools:
        fields["tools"] = list(tools.values())
    if request.tool_choice is not None:
        fields |= _choice_of(request.tool_choice)
    fields |= _thinking_of(request) | _format_of(request)
    if request.messages[-1].role == "assistant" and messages[-1].content:
        fields["continue_final_message"] = not messages[-1].tool_calls
    if isinstance(request, MessagesRequest):
        fields |= _sampling_of(request)
    # What is in it was checked when the request was read.
    return ChatCompletionRequest.model_construct(**fields)


def _sampling_of(request: MessagesRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"max_tokens": request.max_tokens, "stream": request.stream}
    if request.stop_sequences:
        found["stop"] = request.stop_sequences
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(request, name)) is not None:
            found[name] = value
    return found


# ---- tools -----------------------------------------------------------------------------------


def _tools_of(request: CountTokensRequest) -> dict[str, dict[str, Any]]:
    """Return every tool that may be called, by name, in chats' shape."""
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(request.tools or ()):
        place = f"tools[{index}]"
        if tool.name in found:
            raise RequestError(
                f"{place}.name: there is another tool {tool.name!r}; give each a name of its own",
                param="tools",
            )
        found[tool.name] = _tool_of(tool, place)
    for number, message in enumerate(request.messages):
        blocks = message.content if isinstance(message.content, list) else ()
        for index, block in enumerate(blocks):
            if block.type == "tool_addition" and block.tool and block.tool.definition:
                added = block.tool.definition
                place = f"messages[{number}].content[{index}].tool.definition"
                found.setdefault(added.name, {**_tool_of(added, place), "defer_loading": True})
    return found


def _tool_of(tool: ToolDefinition, place: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"{place}: tools of type {tool.type[:64]!r} are Anthropic's own, which this server "
            "does not know; leave it out, or send a tool with name and input_schema",
            param="tools",
        )
    if tool.input_schema is None:
        raise RequestError(f"{place}.input_schema: is required", param="tools")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict:
        function["strict"] = True
    made: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading:
        made["defer_loading"] = True
    return made


def _choice_of(choice: MessagesToolChoice) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if choice.type == "tool":
        if not choice.name:
            raise RequestError("tool_choice.name: is required for type tool", param="tool_choice")
        found["tool_choice"] = NamedTool(function=FunctionName(name=choice.name))
    else:
        found["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False
    return found


# ---- request options -------------------------------------------------------------------------


def _thinking_of(request: CountTokensRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (asked := request.thinking) is not None:
        kind = "adaptive" if asked.type == "between_tools" else asked.type
        found["thinking"] = Thinking(type=kind, budget_tokens=asked.budget_tokens)
    config = request.output_config
    if config is not None and config.effort is not None:
        found["reasoning_effort"] = _EFFORTS[config.effort]
    return found


def _format_of(request: CountTokensRequest) -> dict[str, Any]:
    config = request.output_config
    asked = (config and config.format) or request.output_format
    if asked is None:
        return {}
    described = JsonSchemaFormat(schema=asked.schema_)
    return {"response_format": ResponseFormat(type="json_schema", json_schema=described)}


# ---- messages --------------------------------------------------------------------------------


def _system_of(request: CountTokensRequest) -> Iterator[ChatMessage]:
    system = request.system
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    if texts and texts[0].startswith(_BILLING_LINE):
        texts[0] = texts[0].partition("\n")[2]
    texts = [text for text in texts if text]
    if texts:
        yield _said("system", texts)


def _said(role: str, said: Sequence[str | UnreadPart]) -> ChatMessage:
    return ChatMessage.model_construct(role=role, content=[_part(each) for each in said])


def _part(said: str | UnreadPart) -> TextPart | UnreadPart:
    return TextPart(type="text", text=said) if isinstance(said, str) else said


def _messages_of(request: CountTokensRequest, reading: _Reading) -> Iterator[ChatMessage]:
    last_user = max(
        (index for index, message in enumerate(request.messages) if message.role == "user"),
        default=-1,
    )
    for index, message in enumerate(request.messages):
        if message.clear_at == "next_user_message" and index < last_user:
            continue
        place = f"messages[{index}].content"
        if message.role == "assistant":
            yield _assistant(message, place)
        else:
            yield from _heard(message, place, reading)


def _blocks(message: InputMessage) -> list[ContentBlock]:
    content = message.content
    return content if isinstance(content, list) else [ContentBlock(type="text", text=content)]


def _heard(message: InputMessage, place: str, reading: _Reading) -> Iterator[ChatMessage]:
    """Convert a user's or system's message: tool results first, then one message of its texts and
    images."""
    said: list[str | UnreadPart] = []
    results = False
    for index, block in enumerate(_blocks(message)):
        at = f"{place}[{index}]"
        if block.type == "tool_result":
            results = True
            yield ChatMessage.model_construct(
                role="tool",
                content=_result(block, at, reading),
                tool_call_id=_needed(block.tool_use_id, f"{at}.tool_use_id"),
            )
        elif block.type == "text":
            said.append(_needed(block.text, f"{at}.text"))
        elif block.type == IMAGE:
            if not reading.images:
                raise RequestError(f"{at}.type: {not_taken(IMAGE)}", param="messages")
            if message.role != "user":
                raise _misplaced(block, at, message.role)
            said.append(_image(block.source, at))
        elif block.type in ("tool_addition", "tool_removal"):
            said.append(_changed(block, at, reading.tools))
        else:
            raise _misplaced(block, at, message.role)
    if said or not results:
        yield _said(message.role, said)


def _assistant(message: InputMessage, place: str) -> ChatMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(_blocks(message)):
        at = f"{place}[{index}]"
        if block.type == "text":
            texts.append(_needed(block.text, f"{at}.text"))
        elif block.type == "thinking":
            thoughts.append(block.thinking or unsealed(block.signature or ""))
        elif block.type == "tool_use":
            name = _needed(block.name, f"{at}.name")
            call = FunctionCall(name=name, arguments=block.input or {})
            calls.append(ToolCall(id=_needed(block.id, f"{at}.id"), function=call))
        elif block.type == IMAGE:
            raise RequestError(f"{at}.type: {not_taken(IMAGE)}", param="messages")
        elif block.type != "redacted_thinking":  # which only its author can read
            raise _misplaced(block, at, message.role)
    fields: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thought := "".join(thoughts):
        fields["reasoning"] = thought
    if calls:
        fields["tool_calls"] = calls
    return ChatMessage.model_construct(**fields)


def _result(
    block: ContentBlock, place: str, reading: _Reading
) -> str | list[TextPart | UnreadPart]:
    content = block.content
    if isinstance(content, list):
        shown = [
            _shown(part, f"{place}.content[{index}]", reading) for index, part in enumerate(content)
        ]
        if any(isinstance(each, UnreadPart) for each in shown):
            return [_part(each) for each in (["Error:", *shown] if block.is_error else shown)]
        content = "\n".join(each for each in shown if isinstance(each, str))
    # Models know of errors by their text alone.
    return f"Error: {content or ''}" if block.is_error else content or ""


def _shown(part: ResultBlock, place: str, reading: _Reading) -> str | UnreadPart:
    if part.type == "text":
        return _needed(part.text, f"{place}.text")
    if part.type == IMAGE and reading.images:
        return _image(part.source, place)
    if (words := words_for(part.type)) is not None:
        return words
    return _definition(_needed(part.tool_name, f"{place}.tool_name"), place, reading.tools)


def _image(source: Any, place: str) -> UnreadPart:
    """Convert the source of an image to a URL."""
    given = source if isinstance(source, dict) else {}
    if given.get("type") == "base64":
        kind, data = (_text(given, name, place) for name in ("media_type", "data"))
        return image_part(f"data:{kind};base64,{data}", place)
    if given.get("type") == "url":
        return image_part(_text(given, "url", place), place)
    raise RequestError(
        f"{place}.source.type: must be base64 or url; this server stores no files",
        param="messages",
    )


def _text(source: Mapping[str, Any], name: str, place: str) -> str:
    value = source.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{place}.source.{name}: is required, a text", param="messages")
    return value


def _changed(block: ContentBlock, place: str, tools: Mapping[str, dict[str, Any]]) -> str:
    change = block.tool
    name = _name_in(change) if change is not None else None
    named = _needed(name, f"{place}.tool")
    if block.type == "tool_removal":
        return f"The tool {named} can no longer be called."
    return _definition(named, place, tools)


def _name_in(change: ToolChange) -> str | None:
    return change.name if change.definition is None else change.definition.name


def _definition(name: str, place: str, tools: Mapping[str, dict[str, Any]]) -> str:
    """Write the definition of a tool that the model has not been shown, as most templates do."""
    if name not in tools:
        raise RequestError(
            f"{place}: there is no tool {name[:64]!r} among tools; declare it, with defer_loading",
            param="messages",
        )
    shown = {key: value for key, value in tools[name].items() if key != "defer_loading"}
    written = json.dumps(shown, ensure_ascii=False)
    return f"The tool {name} can be called from here on:\n{written}"


def _needed(value: str | None, place: str) -> str:
    if value is None:
        raise RequestError(f"{place}: is required", param="messages")
    return value


def _misplaced(block: ContentBlock, place: str, role: str) -> RequestError:
    return RequestError(
        f"{place}: a {block.type} block has no place in a message of role {role}; send it where it "
        "belongs, or leave it out",
        param="messages",
    )
