"""/v1/chat/completions: a conversation to a prompt, and outputs to a message or its chunks.

Knows the API's shapes and the engine's stream; no HTTP, no tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from msgspec import UNSET

from atom.entrypoints.openai.outputs import AnswerHead, check_output, read_answer
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    TemplateFields,
    TokenizeRequest,
    ToolCall,
)
from atom.entrypoints.openai.responses import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Delta,
    to_json,
    usage_of,
)
from atom.entrypoints.openai.sampling import sampling_params_of
from atom.entrypoints.openai.sse import DONE, frame
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.request_stream import RequestStream


async def start_chat(
    engine: AsyncLLMEngine, request: ChatCompletionRequest, request_id: str
) -> RequestStream:
    """Queue the conversation. Raises `RequestError` for whatever is wrong with it."""
    asked = request.max_completion_tokens
    params = sampling_params_of(
        request,
        engine.config.model.generation,
        max_tokens=request.max_tokens if asked is None else asked,
    )
    prompt = chat_prompt(engine, request)
    # The template writes special tokens itself.
    return await engine.add_request(
        prompt,
        params,
        request_id=request_id,
        add_special_tokens=False,
        priority=request.priority or 0,
        timeout_seconds=request.timeout_seconds,
    )


def chat_prompt(engine: AsyncLLMEngine, request: ChatCompletionRequest | TokenizeRequest) -> str:
    """The conversation as the model reads it."""
    return engine.processor.render_chat(
        [_template_message(index, item) for index, item in enumerate(request.messages or ())],
        tools=_template_tools(request),
        extra=_template_variables(request),
    )


async def complete_chat(stream: RequestStream, head: AnswerHead) -> bytes:
    """The whole answer as one JSON body."""
    answer = await read_answer(stream)
    choice = ChatChoice(0, ChatAnswer(answer.text), answer.finish_reason)
    return to_json(
        ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=usage_of([answer.last]),
        )
    )


async def stream_chat(
    stream: RequestStream, head: AnswerHead, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Frames: the role, the text as it comes, the finish reason, the usage if asked for, [DONE]."""

    def chunk(delta: Delta, finish_reason: str | None = None) -> bytes:
        return frame(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[ChatChunkChoice(0, delta, finish_reason)],
                usage=None if with_usage else UNSET,
            )
        )

    yield chunk(Delta(role="assistant", content=""))
    async for output in stream:
        check_output(output)
        if output.text:
            yield chunk(Delta(content=output.text))
        if output.finished:
            yield chunk(Delta(), output.finish_reason)
            if with_usage:
                yield frame(
                    ChatChunk(
                        id=head.id,
                        created=head.created,
                        model=head.model,
                        choices=[],
                        usage=usage_of([output]),
                    )
                )
    yield DONE


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates know it: plain values, only the keys that it has."""
    content = message.content
    if content is None:
        if not message.tool_calls:
            raise RequestError(
                f"messages[{index}].content: is required for role {message.role}",
                param="messages",
            )
        content = ""
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    # Templates know "system"; "developer" is its newer name in the API.
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content}
    for key in ("name", "reasoning_content", "tool_call_id"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    if message.tool_calls:
        found["tool_calls"] = [_template_tool_call(index, call) for call in message.tool_calls]
    return found


def _template_tool_call(index: int, call: ToolCall) -> dict[str, Any]:
    """Clients send a call's arguments as JSON text; templates want the object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError(
                f"messages[{index}].tool_calls: the arguments of {call.function.name!r} are not "
                f"JSON",
                param="messages",
            ) from None
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _template_tools(request: TemplateFields) -> list[dict[str, Any]] | None:
    if (request.model_extra or {}).get("tool_choice") == "none":
        return None
    return request.tools or None


def _template_variables(request: TemplateFields) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    return variables
