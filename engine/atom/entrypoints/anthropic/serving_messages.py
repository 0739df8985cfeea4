"""/v1/messages and /v1/messages/count_tokens: chats in Anthropic's shape.

A conversation becomes a chat request and is answered as every chat; what differs is how its answer
is shown. Knows the API's shapes; no tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.anthropic.answers import Message, TokenCount, ToolUseBlock, usage_of
from atom.entrypoints.anthropic.conversation import chat_request_of
from atom.entrypoints.anthropic.errors import PATH, AnthropicError
from atom.entrypoints.anthropic.message_events import MessageEvents, blocks_of, stop_of
from atom.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.body import read_body
from atom.entrypoints.openai.chat_parsing import events_of
from atom.entrypoints.openai.chat_prompt import chat_work, rendered_chat
from atom.entrypoints.openai.choices import AnswerHead, Answers, render
from atom.entrypoints.openai.generation import Dialect
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.openai.serving_chat import start_chat
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine

# Errors about the chat that a conversation became name its fields; clients know these.
_NAMES = (
    (re.compile(r"\.function\.parameters\b"), ".input_schema"),
    (re.compile(r"\.function\.name\b"), ".name"),
    (re.compile(r"^stop\b"), "stop_sequences"),
    (re.compile(r"^reasoning_effort\b"), "output_config.effort"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "output_config.format"),
)


async def start_messages(
    engine: AsyncLLMEngine,
    request: MessagesRequest,
    request_id: str,
    *,
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
    client_id: str = "",
) -> Answers:
    """Queue the conversation. Raises `RequestError` for whatever is wrong with it."""
    try:
        make_chat = partial(chat_request_of, request, images=engine.images is not None)
        answers = await start_chat(
            engine,
            await chat_work(engine, client_id, request, make_chat),
            request_id,
            timeout_seconds=timeout_seconds,
            deadline_seconds=deadline_seconds,
            client_id=client_id,
        )
    except RequestError as error:
        raise _renamed(error) from None
    thinking = request.thinking
    answers.shown = replace(
        answers.shown,
        seals_reasoning=thinking is not None and thinking.display == "omitted",
        asked_tokens=request.max_tokens,
    )
    return answers


def _counted_chat(engine: AsyncLLMEngine, request: CountTokensRequest) -> ChatCompletionRequest:
    chat = chat_request_of(request, images=engine.images is not None)
    chat.callable_tools()
    return chat


def _renamed(error: RequestError) -> RequestError:
    text = str(error)
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return error.reworded(text, error.param)


async def complete_message(answers: Answers, head: AnswerHead) -> bytes:
    """Write the whole answer as one JSON body."""
    choices = await answers.collect()

    def body() -> bytes:
        text, parsing = "".join(choices[0].texts), answers.shown.parsing
        events = events_of(parsing, text, str(answers.lasts[0].finish_reason))
        blocks = blocks_of(events, parsing, seals=answers.shown.seals_reasoning)
        stop = stop_of(answers, called=any(isinstance(block, ToolUseBlock) for block in blocks))
        return to_json(
            Message(
                id=head.id,
                model=head.model,
                content=blocks,
                stop_reason=stop.stop_reason,
                stop_sequence=stop.stop_sequence,
                usage=usage_of(answers.usage()),
            )
        )

    return await render(choices, body, parses=answers.shown.parsing is not None)


_EXAMPLE: dict[str, Any] = {"messages": [{"role": "user", "content": "What is ATOM?"}]}
MESSAGES: Dialect[MessagesRequest] = Dialect(
    PATH, "msg_", MessagesRequest, Message,
    start_messages, complete_message, MessageEvents,
    "Answer a conversation of Anthropic's Messages API",
    "The next message as blocks of text, reasoning and calls of tools; with `stream` as "
    "Anthropic's events. Claude Code speaks this.",
    _EXAMPLE | {"max_tokens": 32},
)  # fmt: skip


DOCUMENTED = Beside(
    (MessagesRequest, CountTokensRequest),
    (Message, TokenCount, AnthropicError),
    dict.fromkeys((PATH, f"{PATH}/count_tokens"), AnthropicError.__name__),
)


def message_routes(state: ServerState) -> APIRouter:
    """Build the routes of Anthropic's API that do not generate."""
    router = APIRouter(tags=["tokens"])

    @router.head("/", include_in_schema=False)
    async def root() -> Response:
        """Answer Claude Code, which first checks whether the server is there."""
        return Response()

    @router.post(
        f"{PATH}/count_tokens",
        summary="Count the tokens of a conversation",
        description="The tokens that /v1/messages would read of the same conversation.",
        openapi_extra=body_of(CountTokensRequest, _EXAMPLE),
        responses=answers_of(TokenCount, example=msgspec.to_builtins(TokenCount(14))),
    )
    async def count_tokens(http: Request) -> Response:
        with state.body_share() as share:
            client_id = state.clients.of(http.scope)
            turns = state.turns.of(client_id)
            request = await read_body(http, CountTokensRequest, share, turns)
            engine = state.serving_engine(request.model)
            try:
                make_chat = partial(_counted_chat, engine, request)
                chat = await chat_work(engine, client_id, request, make_chat)
                rendered = await rendered_chat(engine, client_id, chat)
                tokens = await engine.tokenize(
                    rendered.prompt, add_special_tokens=False, client_id=client_id
                )
            except RequestError as error:
                raise _renamed(error) from None
        return Response(to_json(TokenCount(len(tokens))), media_type="application/json")

    return router
