"""The routes of /v1/responses that answer; those of what is stored are in stored_routes.py.

An answer is a chat's (`start_chat`), as that of /v1/chat/completions; a request's body is held only
until its prompt is queued. No shapes of the API here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.body_budget import BodyShare
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.response_headers import tell_ignored
from atom.entrypoints.http.sse import EventStream, until_disconnect
from atom.entrypoints.openai.body import deadline_of, read_body, timeout_of
from atom.entrypoints.openai.chat_prompt import rendered_chat
from atom.entrypoints.openai.choices import AnswerHead, Answers
from atom.entrypoints.openai.frames import AnswerFrames
from atom.entrypoints.openai.generation import CLIENT_LEFT, Handler, accepted
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.serving_chat import start_chat
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.responses.chat_request import Asked, asked_chat, naming_own_fields
from atom.entrypoints.responses.frames import ResponseFrames
from atom.entrypoints.responses.input_items import item_prefix, text_input
from atom.entrypoints.responses.objects import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseObject,
)
from atom.entrypoints.responses.output import new_id
from atom.entrypoints.responses.protocol import (
    PATH,
    ConversationFields,
    InputTokensRequest,
    ResponsesRequest,
)
from atom.entrypoints.responses.serving import (
    AnswerReader,
    begun_response,
    output_items,
    whole_response,
)
from atom.entrypoints.responses.store import ResponseStore, StoredResponse, owner_of

COUNT_PATH = "/v1/responses/input_tokens"
_EXAMPLE = {"input": "Hello!", "max_output_tokens": 16, "request_id": "example"}
DOCUMENTED = Beside(
    (InputTokensRequest, ResponsesRequest),
    (DeletedResponse, InputItemList, InputTokens, ResponseObject),
)

Fields = TypeVar("Fields", bound=ConversationFields)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Hold a queued answer, and its delivery options. before: items of the conversation that it
    continues; items: its own input's."""

    answers: Answers
    reader: AnswerReader
    response: ResponseObject
    streams: bool
    may_be_refused: bool
    owner: str
    before: Sequence[Any]
    items: Sequence[Any]


def responses_handlers(
    app: FastAPI, state: ServerState, store: ResponseStore
) -> dict[str, Handler]:
    """Build the handlers that answer a POST, by path, and add their documentation to `app`."""

    async def create_response(http: Request) -> Response:
        with state.body_share() as share:
            begun = await _begin(http, state, store, share)
        if begun is None:
            return CLIENT_LEFT
        with naming_own_fields():
            return await _answer(http, store, begun)

    async def count_input_tokens(http: Request) -> Response:
        with state.body_share() as share:
            return await _count(http, state, store, share)

    app.post(
        PATH,
        summary="Answer a conversation of items",
        description="The answer as items: reasoning, a message, calls of tools; as one JSON body, "
        "or with stream true as events. The conversation is sent whole, or goes on with a response "
        "that is stored.",
        openapi_extra=body_of(ResponsesRequest, _EXAMPLE),
        responses=answers_of(ResponseObject, stream="text/event-stream"),
        tags=["responses"],
    )(create_response)
    app.post(
        COUNT_PATH,
        summary="Count the tokens of a conversation",
        description="As many as the prompt of the same request has.",
        openapi_extra=body_of(InputTokensRequest, {"input": "Hello!"}),
        responses=answers_of(InputTokens),
        tags=["responses"],
    )(count_input_tokens)
    return {PATH: create_response, COUNT_PATH: count_input_tokens}


async def _read(
    http: Request, state: ServerState, store: ResponseStore, kind: type[Fields], share: BodyShare
) -> tuple[Fields, Asked, Sequence[Any], str]:
    """Return the request, its translation, the items of the conversation before it, and its
    sender."""
    client_id = state.clients.of(http.scope)
    turns = state.turns.of(client_id)
    request = await read_body(http, kind, share, turns)
    owner, stored = owner_of(client_id), None
    if request.previous_response_id is not None:
        store.check_on("previous_response_id")
        stored = store.get(request.previous_response_id, owner, param="previous_response_id")
    own = request.input if request.input is not None else []
    items = text_input(own) if isinstance(own, str) else store.resolved(own, owner)

    def converse() -> tuple[Asked, Sequence[Any]]:
        before = [] if stored is None else stored.items()
        return asked_chat(request, before, items, images=state.reads_images), before

    size_bytes = share.held_bytes + (0 if stored is None else stored.size_bytes)
    with naming_own_fields():
        asked, before = await turns.run(size_bytes, converse)
    if asked.tools.passed_over:
        tell_ignored(http.scope, asked.tools.passed_over)
    return request, asked, before, client_id


async def _begin(
    http: Request, state: ServerState, store: ResponseStore, share: BodyShare
) -> _Begun | None:
    """Process everything that needs the request itself, which is released here; None if the client
    left while its images were read."""
    request, asked, before, client_id = await _read(http, state, store, ResponsesRequest, share)
    engine = state.serving_engine(request.model)
    if request.store:
        store.check_on("store")
    stores = store.is_on and request.store is not False
    model = engine.config.model
    number = request.request_id or token_hex(16)
    head = AnswerHead(f"resp_{number}", int(time.time()), engine.answering(request.model))
    deadline = deadline_of(http, request)
    start = partial(
        start_chat,
        engine,
        asked.chat,
        head.id,
        timeout_seconds=timeout_of(http, request),
        deadline_seconds=deadline,
        client_id=client_id,
    )
    with naming_own_fields():
        waits = state.reads_images  # for memory, and the client may leave meanwhile
        answers = await (until_disconnect(http.receive, start) if waits else start())
    if answers is None:
        return None
    return _Begun(
        answers,
        AnswerReader(answers, output_items(request, asked.tools, answers)),
        begun_response(request, head, model.generation, stores=stores),
        streams=bool(request.stream),
        may_be_refused=asked.chat.compiles_grammar
        or asked.tools.has_strict
        or state.refuses_late
        or engine.deadlines.ends_late_ones(deadline),
        owner=owner_of(client_id),
        before=before if stores else (),
        items=asked.items if stores else (),
    )


async def _answer(http: Request, store: ResponseStore, begun: _Begun) -> Response:
    answers = begun.answers

    def keep(response: ResponseObject) -> None:
        if response.store:
            store.add(_stored(response, begun))

    if begun.streams:
        if begun.may_be_refused and not await accepted(http, answers):
            return CLIENT_LEFT
        shape = ResponseFrames(answers, begun.reader, begun.response, keep)
        return EventStream(AnswerFrames(answers, shape))

    async def complete() -> bytes:
        response = await whole_response(answers, begun.reader, begun.response)
        keep(response)
        return to_json(response)

    try:
        # As one body, unless the client leaves before it is complete.
        body = await until_disconnect(http.receive, complete)
    finally:
        answers.close()
    return CLIENT_LEFT if body is None else Response(body, media_type="application/json")


def _stored(response: ResponseObject, begun: _Begun) -> StoredResponse:
    items = [
        item if "id" in item else {**item, "id": new_id(item_prefix(item))} for item in begun.items
    ]
    return StoredResponse(
        response.id,
        begun.owner,
        to_json(response),
        to_json(items),
        to_json([*begun.before, *items, *response.output]),
    )


async def _count(
    http: Request, state: ServerState, store: ResponseStore, share: BodyShare
) -> Response:
    request, asked, _, client_id = await _read(http, state, store, InputTokensRequest, share)
    engine = state.serving_engine(request.model)
    with naming_own_fields():
        rendered = await rendered_chat(engine, client_id, asked.chat)
        tokens = await engine.tokenize(
            rendered.prompt, add_special_tokens=False, client_id=client_id
        )
    body = to_json(InputTokens(input_tokens=len(tokens)))
    return Response(body, media_type="application/json")
