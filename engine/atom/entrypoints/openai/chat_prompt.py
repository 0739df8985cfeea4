"""A conversation as the API has it to the text that the model reads, through its chat template.

Messages and tools become the plain values that templates know. A short conversation is rendered at
once, a long one on a thread, whose turn AsyncText finds. Used by /v1/chat/completions and
/tokenize, so that both see the same prompt; starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from atom.entrypoints.http.long_requests import is_long
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    TemplateFields,
    TextPart,
    TokenizeRequest,
    UnreadPart,
)
from atom.entrypoints.openai.thinking import template_switches
from atom.entrypoints.openai.tools import AllowedChoice, NamedTool
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine

_Result = TypeVar("_Result")


async def chat_work(
    engine: AsyncLLMEngine, client_id: str, parts: object, work: Callable[[], _Result]
) -> _Result:
    """Do the `work` on a conversation for a client. parts: requests, or lists of messages, that it
    reads. Raises the work's errors."""
    return await engine.text.run(client_id, work, is_long=is_long(parts))


async def rendered_chat(
    engine: AsyncLLMEngine, client_id: str, request: ChatCompletionRequest | TokenizeRequest
) -> str:
    """Render a conversation, as `chat_prompt` does. Raises `RequestError`."""
    return await chat_work(engine, client_id, request, partial(chat_prompt, engine, request))


def chat_prompt(engine: AsyncLLMEngine, request: ChatCompletionRequest | TokenizeRequest) -> str:
    """Render the conversation as the model reads it. Raises `RequestError`."""
    messages = request.messages or []
    continues = continues_message(request)
    if request.documents and not engine.processor.template_names("documents"):
        raise RequestError(
            "documents: the chat template of this model has no place for them; write them into a "
            "message",
            param="documents",
        )
    return engine.processor.render_chat(
        [_template_message(index, item) for index, item in enumerate(messages)],
        tools=_template_tools(request),
        add_generation_prompt=request.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        extra=_template_variables(request),
    )


def continues_message(request: ChatCompletionRequest | TokenizeRequest) -> bool:
    """Return whether the answer continues the last message. Raises `RequestError` if it cannot."""
    messages = request.messages or []
    for index, message in enumerate(messages[:-1]):
        if message.prefix:
            raise RequestError(
                f"messages[{index}].prefix: only the last message can be the beginning of the "
                f"answer",
                param="messages",
            )
    asked = bool(request.continue_final_message or (messages and messages[-1].prefix))
    if asked and request.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot both be true: the answer goes "
            "on with the last message, or is one of its own",
            param="continue_final_message",
        )
    if asked and (not messages or messages[-1].role != "assistant" or not messages[-1].content):
        raise RequestError(
            "continue_final_message: the last message must be the assistant's, with a content to "
            "go on with",
            param="continue_final_message",
        )
    return asked


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates know it: plain values, only the keys that it has."""
    content = message.content
    if content is None:
        if not (message.tool_calls or message.reasoning or message.reasoning_content):
            raise RequestError(
                f"messages[{index}].content: is required for role {message.role}",
                param="messages",
            )
        content = ""
    if isinstance(content, list):
        if message.role != "tool":
            _check_parts(index, content)
        content = "\n".join(part.text for part in content)
    # Templates know "system"; "developer" is its newer name in the API.
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content}
    for key in ("name", "tool_call_id"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    if reasoning is not None:
        found["reasoning"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return found


def _check_parts(index: int, parts: Sequence[TextPart | UnreadPart]) -> None:
    """Refuse a picture or document that is no result of a tool. Raises `RequestError`."""
    for number, part in enumerate(parts):
        if isinstance(part, UnreadPart):
            raise RequestError(
                f"messages[{index}].content[{number}].type: input should be 'text', and is "
                f"{part.type!r}; this server takes text only",
                param="messages",
            )


def _template_tools(request: TemplateFields) -> list[dict[str, Any]] | None:
    """List the tools for the template: of a choice among the tools only the callable ones, and none
    whose loading is deferred: an agent shows it in a message, once it is requested."""
    choice = request.tool_choice
    if choice == "none":
        return None
    shown = [tool for tool in request.tools or () if tool.get("defer_loading") is not True]
    if isinstance(choice, AllowedChoice):
        names = {tool.name for tool in request.callable_tools()}
        shown = [tool for tool in shown if tool["function"]["name"] in names]
    return shown or None


def _template_variables(request: TemplateFields) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    for name, value in template_switches(request).items():
        variables.setdefault(name, value)
    if request.documents:
        variables.setdefault("documents", request.documents)
    choice = request.tool_choice
    if choice is not None:
        plain = choice.model_dump() if isinstance(choice, NamedTool) else request.choice_mode
        variables.setdefault("tool_choice", plain)
    return variables
