"""The routes of /v1/responses: to answer, and to read, list and delete what is stored.

An answer is a chat's (`start_chat`), as that of /v1/chat/completions; a request's body is held only
until its prompt is queued. No shapes of the API here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Path
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.body_budget import BodyShare
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.response_headers import tell_ignored
from atom.entrypoints.http.sse import EventStream, until_disconnect
from atom.entrypoints.openai.body import read_body, timeout_of
from atom.entrypoints.openai.chat_prompt import chat_prompt
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
    ConversationFields,
    InputTokensRequest,
    ResponsesRequest,
)
from atom.entrypoints.responses.serving import (
    EXAMPLE_RESPONSE,
    AnswerReader,
    begun_response,
    output_items,
    whole_response,
)
from atom.entrypoints.responses.store import ResponseStore, StoredResponse, owner_of
from atom.errors import RequestError

PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"
_MOST_LISTED, _LISTED = 100, 20
_EXAMPLE_ID = "resp_example"
ResponseId = Annotated[
    str, Path(description="Id of a response that is stored.", examples=[_EXAMPLE_ID])
]
_EXAMPLE = {"input": "Hello!", "max_output_tokens": 16, "request_id": "example"}
_LISTED_EXAMPLE = {
    "object": "list",
    "data": [{"id": "msg_1", "type": "message", "role": "user", "content": "Hello!"}],
    "first_id": "msg_1",
    "last_id": "msg_1",
    "has_more": False,
}
DOCUMENTED = Beside(
    (InputTokensRequest, ResponsesRequest),
    (DeletedResponse, InputItemList, InputTokens, ResponseObject),
)

Fields = TypeVar("Fields", bound=ConversationFields)


@dataclass(frozen=True, slots=True)
class _Begun:
    """An answer that was queued, and how it is to come. before: items of the conversation that it
    goes on with; items: its own input's."""

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
    """Build the handlers that answer a POST, by path. `app` is told of them for its document."""

    async def create_response(http: Request) -> Response:
        with state.bodies.share() as share:
            begun = await _begin(http, state, store, share)
        with naming_own_fields():
            return await _answer(http, store, begun)

    async def count_input_tokens(http: Request) -> Response:
        with state.bodies.share() as share:
            return await _count(http, state, store, share)

    app.post(
        PATH,
        summary="Answer a conversation of items",
        description="The answer as items: reasoning, a message, calls of tools; as one JSON body, "
        "or with stream true as events. The conversation is sent whole, or goes on with a response "
        "that is stored.",
        openapi_extra=body_of(ResponsesRequest, _EXAMPLE),
        responses=answers_of(ResponseObject, streams=True),
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


def responses_routes(state: ServerState, store: ResponseStore) -> APIRouter:
    """Build the routes of responses that are stored."""
    router = APIRouter(tags=["responses"])

    def stored(http: Request, response_id: str) -> StoredResponse:
        return store.get(response_id, owner_of(state.clients.of(http.scope)))

    @router.get(
        f"{PATH}/{{response_id}}/input_items",
        summary="List the items of a response's input",
        description="In pages: limit (1 to 100, else 20), after (an item's id), order (asc, or "
        "desc, which is the default).",
        responses=answers_of(InputItemList, example=_LISTED_EXAMPLE),
    )
    async def list_input_items(http: Request, response_id: ResponseId) -> Response:
        return _json(_listed(stored(http, response_id).input_items(), http))

    # Not in the document: it cannot succeed.
    @router.post(f"{PATH}/{{response_id}}/cancel", include_in_schema=False)
    async def cancel_response(http: Request, response_id: ResponseId) -> Response:
        stored(http, response_id)
        raise RequestError(
            "only responses in the background can be cancelled, and there are none here; close "
            "the connection of one that is under way"
        )

    @router.get(
        f"{PATH}/{{response_id}}",
        summary="Read a response that is stored",
        description="As it was answered, without its events.",
        responses=answers_of(
            ResponseObject, example=msgspec.json.decode(to_json(EXAMPLE_RESPONSE))
        ),
    )
    async def get_response(http: Request, response_id: ResponseId) -> Response:
        found = stored(http, response_id)
        if http.query_params.get("stream") == "true":
            raise RequestError(
                "stream: a stored response is complete; ask for it without stream", param="stream"
            )
        return Response(found.body, media_type="application/json")

    @router.delete(
        f"{PATH}/{{response_id}}",
        summary="Delete a response that is stored",
        description="Nothing of it is kept, and nothing can go on with it. Later ones that did "
        "have its items.",
        responses=answers_of(
            DeletedResponse, example=msgspec.to_builtins(DeletedResponse(id=_EXAMPLE_ID))
        ),
    )
    async def delete_response(http: Request, response_id: ResponseId) -> Response:
        store.delete(response_id, owner_of(state.clients.of(http.scope)))
        return _json(DeletedResponse(id=response_id))

    return router


def _listed(items: list[dict[str, Any]], http: Request) -> InputItemList:
    query = http.query_params
    limit = query.get("limit", str(_LISTED))
    if not limit.isdigit() or not 1 <= int(limit) <= _MOST_LISTED:
        raise RequestError(f"limit: must be 1 to {_MOST_LISTED}", param="limit")
    if query.get("order", "desc") == "desc":
        items = items[::-1]
    after = query.get("after")
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise RequestError("after: no item of this response has that id", param="after")
        items = items[ids.index(after) + 1 :]
    shown = items[: int(limit)]
    return InputItemList(
        data=shown,
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=len(shown) < len(items),
    )


async def _read(
    http: Request, state: ServerState, store: ResponseStore, kind: type[Fields], share: BodyShare
) -> tuple[Fields, Asked, Sequence[Any], str]:
    """The request, what it asks for, the items of the conversation before it, and its sender."""
    client_id = state.clients.of(http.scope)
    request = await read_body(http, kind, share, partial(state.turns.wait, client_id))
    owner, before = owner_of(client_id), list[Any]()
    if request.previous_response_id is not None:
        store.check_on("previous_response_id")
        before = store.get(
            request.previous_response_id, owner, param="previous_response_id"
        ).items()
    own = request.input if request.input is not None else []
    items = text_input(own) if isinstance(own, str) else store.resolved(own, owner)
    with naming_own_fields():
        asked = asked_chat(request, before, items)
    if asked.tools.passed_over:
        tell_ignored(http.scope, asked.tools.passed_over)
    return request, asked, before, client_id


async def _begin(
    http: Request, state: ServerState, store: ResponseStore, share: BodyShare
) -> _Begun:
    """Everything that needs the request itself, which ends here."""
    request, asked, before, client_id = await _read(http, state, store, ResponsesRequest, share)
    engine = state.serving_engine(request.model)
    if request.store:
        store.check_on("store")
    stores = store.is_on and request.store is not False
    model = engine.config.model
    number = request.request_id or token_hex(16)
    head = AnswerHead(f"resp_{number}", int(time.time()), model.served_name)
    with naming_own_fields():
        answers = await start_chat(
            engine,
            asked.chat,
            head.id,
            timeout_seconds=timeout_of(http, request),
            client_id=client_id,
        )
    return _Begun(
        answers,
        AnswerReader(answers, output_items(request, asked.tools, answers)),
        begun_response(request, head, model.generation, stores=stores),
        streams=bool(request.stream),
        may_be_refused=asked.chat.compiles_grammar or asked.tools.has_strict,
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
        prompt = chat_prompt(engine, asked.chat)
        tokens = await engine.tokenize(prompt, add_special_tokens=False, client_id=client_id)
    return _json(InputTokens(input_tokens=len(tokens)))


def _json(body: msgspec.Struct) -> Response:
    return Response(to_json(body), media_type="application/json")
