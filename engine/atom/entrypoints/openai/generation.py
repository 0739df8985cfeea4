"""The routes that generate: from a request's bytes to whole answers or an event stream.

The common part of chat, plain completions and other APIs' answers; a `Dialect` holds the
differences. A request's body is held only until its prompts are queued: an answer may take minutes.
No shapes of the API here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.body_budget import BodyShare
from atom.entrypoints.http.response_headers import tell_transfer
from atom.entrypoints.http.sse import EventStream, until_disconnect
from atom.entrypoints.kv_transfer.answer import header_of_outcome
from atom.entrypoints.kv_transfer.leg_plan import Asked, LegPlan, plan_leg
from atom.entrypoints.openai.body import deadline_of, read_body, timeout_of
from atom.entrypoints.openai.choices import AnswerHead, Answers
from atom.entrypoints.openai.frames import AnswerFrames, EventShape
from atom.entrypoints.openai.openapi import answers_of, body_of
from atom.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from atom.entrypoints.openai.responses import ChatCompletion, TextCompletion
from atom.entrypoints.openai.serving_chat import ChatEvents, complete_chat, start_chat
from atom.entrypoints.openai.serving_completion import (
    TextEvents,
    complete_text,
    start_completion,
)
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.request_fields.generation_fields import TransferFields
from atom.entrypoints.request_fields.request_body import RequestBody
from atom.model_engine.transfer_legs import TransferOutcome

CLIENT_LEFT = Response(status_code=499)  # for the access log; no client reads it

_Asked = TypeVar("_Asked", bound=RequestBody)


@dataclass(frozen=True, slots=True)
class Dialect(Generic[_Asked]):
    """Define one endpoint. id_prefix: of answers' ids. request: type of its bodies, which state by
    the names of `GenerationRequest` how an answer is delivered. start: queues the prompts of a
    request; complete: whole answers as JSON; stream: sends an answer's events."""

    path: str
    id_prefix: str
    request: type[_Asked]
    answer: type[msgspec.Struct]
    start: Callable[..., Awaitable[Answers]]
    complete: Callable[[Answers, AnswerHead], Awaitable[bytes]]
    events: Callable[..., EventShape]
    summary: str
    about: str
    example: Mapping[str, Any]
    stream: type[EventStream] = EventStream


DIALECTS: tuple[Dialect[Any], ...] = (
    Dialect(
        "/v1/chat/completions", "chatcmpl-", ChatCompletionRequest, ChatCompletion,
        start_chat, complete_chat, ChatEvents,
        "Answer a conversation",
        "The next message of the assistant: text, reasoning and calls of tools; with `stream` as "
        "server-sent events.",
        {"messages": [{"role": "user", "content": "What is ATOM?"}], "max_tokens": 32},
    ),
    Dialect(
        "/v1/completions", "cmpl-", CompletionRequest, TextCompletion,
        start_completion, complete_text, TextEvents,
        "Go on with a text",
        "What the model writes after a prompt, which goes to it as it is, without a chat template.",
        {"prompt": "ATOM is", "max_tokens": 32},
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Begun:
    """Hold queued answers, and their request's delivery options. plan: of its legs."""

    answers: Answers
    head: AnswerHead
    streams: bool
    with_usage: bool
    may_be_refused: bool
    plan: LegPlan


_WHOLE = LegPlan()

Handler = Callable[[Request], Awaitable[Response]]


def generation_handlers(
    app: FastAPI, state: ServerState, dialects: Sequence[Dialect[Any]]
) -> dict[str, Handler]:
    """Build the handlers that answer a POST, by path, and add their documentation to `app`."""
    return {dialect.path: _handler(app, state, dialect) for dialect in dialects}


def _handler(app: FastAPI, state: ServerState, dialect: Dialect[Any]) -> Handler:
    async def generate(http: Request) -> Response:
        with state.body_share() as share:
            begun = await _begin(http, state, dialect, share)
        return CLIENT_LEFT if begun is None else await _answer(http, dialect, begun)

    app.post(
        dialect.path,
        name=dialect.path.removeprefix("/v1/").replace("/", "_"),
        summary=dialect.summary,
        description=dialect.about,
        openapi_extra=body_of(dialect.request, dialect.example),
        responses=answers_of(
            dialect.answer, stream=dialect.stream.content_type.decode().partition(";")[0]
        ),
        tags=["generation"],
    )(generate)
    return generate


async def _begin(
    http: Request, state: ServerState, dialect: Dialect[Any], share: BodyShare
) -> _Begun | None:
    """Process everything that needs the request itself, which is released here; None if the client
    left while its images were read."""
    client_id = state.clients.of(http.scope)
    turns = state.turns.of(client_id)
    request = await read_body(http, dialect.request, share, turns)
    engine = state.serving_engine(request.model)
    name = engine.answering(request.model)
    number = request.own_id or token_hex(16)
    head = AnswerHead(f"{dialect.id_prefix}{number}", int(time.time()), name)
    plan = _WHOLE
    if isinstance(request, TransferFields):
        plan = plan_leg(Asked.of(request), engine.config.cache.kv_transfer)
    deadline = deadline_of(http, request)
    start = partial(
        dialect.start,
        engine,
        request,
        head.id,
        timeout_seconds=timeout_of(http, request),
        deadline_seconds=deadline,
        client_id=client_id,
        **({} if plan.leg is None else {"leg": plan.leg}),
    )
    # Images may wait for memory, and their client may leave meanwhile.
    waits = state.reads_images
    answers = await (until_disconnect(http.receive, start) if waits else start())
    if answers is None:
        return None
    return _Begun(
        answers,
        head,
        streams=bool(request.stream),
        with_usage=request.wants_usage_chunk,
        may_be_refused=(
            request.compiles_grammar
            or state.refuses_late
            or engine.deadlines.ends_late_ones(deadline)
        ),
        plan=plan,
    )


async def _answer(http: Request, dialect: Dialect[Any], begun: _Begun) -> Response:
    answers, head = begun.answers, begun.head
    if begun.plan.is_decode and not await _tell_transfer(http, begun):
        return CLIENT_LEFT
    if begun.streams:
        if begun.may_be_refused and not await accepted(http, answers):
            return CLIENT_LEFT
        events = dialect.events(answers, head, with_usage=begun.with_usage)
        return dialect.stream(AnswerFrames(answers, events))
    try:
        # As one body, unless the client leaves before it is complete.
        body = await until_disconnect(http.receive, lambda: dialect.complete(answers, head))
    finally:
        answers.close()
    return CLIENT_LEFT if body is None else Response(body, media_type="application/json")


async def _tell_transfer(http: Request, begun: _Begun) -> bool:
    """Report in a header where the prompt of a decode leg came from, once its pages are here; False
    when the client left meanwhile. Raises `RequestError` if they did not come and have to."""
    answers, header = begun.answers, begun.plan.header
    told = False
    try:
        if header is None:

            async def wait() -> tuple[TransferOutcome | None]:
                return (await answers.group.wait_transferred(),)

            waited = await until_disconnect(http.receive, wait)
            if waited is None:
                return False
            (outcome,) = waited
            header = None if outcome is None else header_of_outcome(outcome)
        if header is not None:
            tell_transfer(http.scope, header)
        told = True
    finally:
        if not told:
            answers.close()
    return True


async def accepted(http: Request, answers: Answers) -> bool:
    """Wait until the engine takes a request with a grammar; False when the client left meanwhile.

    A grammar is compiled in the engine; that it cannot be is known only there. An event stream
    whose headers are sent could report it as an event, but clients look at the status. Raises
    `RequestError` when it was refused; the answers are closed in both cases."""

    async def wait_first() -> bool:
        await answers.group.wait_accepted()
        return True

    taken = False
    try:
        taken = bool(await until_disconnect(http.receive, wait_first))
    finally:
        if not taken:
            answers.close()
    return taken
