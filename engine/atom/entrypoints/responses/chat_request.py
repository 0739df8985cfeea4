"""A request of /v1/responses as the chat that it asks for, and errors about the chat as ones about
the request.

The conversation is that of earlier responses (`store`) with what is sent. Nothing is generated
here: the chat goes the way of every chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.request_fields.generation_fields import SamplingFields
from atom.entrypoints.responses.input_items import MORE_TOOLS, Reading, chat_messages, kind_of
from atom.entrypoints.responses.protocol import (
    ConversationFields,
    ResponsesRequest,
    TextFormat,
)
from atom.entrypoints.responses.tools import ChatTools, chat_choice, chat_tools
from atom.errors import RequestError

_SAME = (*SamplingFields.model_fields, "priority", "cache_salt", "chat_template_kwargs")
# Fields of the chat by the names that the client knows them by.
_PARAMS: Mapping[str, str] = MappingProxyType(
    {
        "messages": "input",
        "prompt": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text",
        "reasoning_effort": "reasoning",
    }
)
_WORDS = (
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    (".function.", "."),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold a request and its translation. items: the input's, as they are stored; chat: the request
    to the model."""

    items: Sequence[Mapping[str, Any]]
    tools: ChatTools
    chat: ChatCompletionRequest


def asked_chat(
    request: ConversationFields,
    before: Sequence[Mapping[str, Any]],
    items: Sequence[Mapping[str, Any]],
    *,
    images: bool = False,
) -> Asked:
    """Translate a request to a chat. before: items of the conversation that it continues; items:
    its own; images: the model reads images. Raises `RequestError`."""
    conversation = [*before, *items]
    tools = chat_tools(request.tools or ())
    more = [tool for item in conversation for tool in _tools_of(item)]
    if more:
        tools = chat_tools([*(request.tools or ()), *more])
    messages = chat_messages(conversation, request.instructions, Reading(tools, images))
    fields: dict[str, Any] = {"model": request.model, "messages": messages}
    if tools.functions:
        fields["tools"] = list(tools.functions)
    choice = chat_choice(request.tool_choice, tools)
    if choice is not None:
        fields["tool_choice"] = choice
    if request.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    if request.reasoning is not None and request.reasoning.effort is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if isinstance(request, ResponsesRequest):
        fields |= _sampling(request)
    return Asked(items, tools, _chat(fields))


def _tools_of(item: Mapping[str, Any]) -> list[Any]:
    if kind_of(item) != MORE_TOOLS:
        return []
    tools = item.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError("input: additional_tools has a list of tools", param="input")
    return tools


def _sampling(request: ResponsesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: getattr(request, name) for name in _SAME if name in request.model_fields_set
    }
    if request.max_output_tokens is not None:
        fields["max_completion_tokens"] = request.max_output_tokens
    most = request.most_logprobs
    if most is not None:
        fields |= {"logprobs": True, "top_logprobs": most}
    text = request.text
    if text is not None and text.format is not None and text.format.type != "text":
        fields["response_format"] = _format(text.format)
    if text is not None and text.verbosity is not None:
        arguments = fields.get("chat_template_kwargs") or {}
        fields["chat_template_kwargs"] = {"verbosity": text.verbosity, **arguments}
    return fields


def _format(asked: TextFormat) -> dict[str, Any]:
    if asked.type == "json_object":
        return {"type": "json_object"}
    if asked.schema_ is None:
        raise RequestError("text.format.schema: is required for type json_schema", param="text")
    described = {"name": asked.name, "description": asked.description, "schema": asked.schema_}
    return {"type": "json_schema", "json_schema": described}


def _chat(fields: Mapping[str, Any]) -> ChatCompletionRequest:
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = str(problem["loc"][0])
        raise RequestError(
            f"{_PARAMS.get(place, place)}: {problem['msg']}", param=_PARAMS.get(place, place)
        ) from None


@contextmanager
def naming_own_fields() -> Iterator[None]:
    """Name fields in errors about a chat as /v1/responses has them."""
    try:
        yield
    except RequestError as error:
        raise own_error(error) from None


def own_error(error: RequestError) -> RequestError:
    text = str(error)
    for word, own in _WORDS:
        text = text.replace(word, own)
    param = None if error.param is None else _PARAMS.get(error.param, error.param)
    return error.reworded(text, param)
