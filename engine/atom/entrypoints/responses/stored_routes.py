"""The routes of responses that are stored: to read, list and delete them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import answers_of
from atom.entrypoints.openai.pages import page_of
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.responses.objects import (
    DeletedResponse,
    InputItemList,
    ResponseObject,
)
from atom.entrypoints.responses.protocol import (
    PATH,
)
from atom.entrypoints.responses.serving import (
    EXAMPLE_RESPONSE,
)
from atom.entrypoints.responses.store import ResponseStore, StoredResponse, owner_of
from atom.errors import RequestError

_MOST_LISTED, _LISTED = 100, 20
_EXAMPLE_ID = "resp_example"
ResponseId = Annotated[
    str, Path(description="Id of a response that is stored.", examples=[_EXAMPLE_ID])
]
_LISTED_EXAMPLE = {
    "object": "list",
    "data": [{"id": "msg_1", "type": "message", "role": "user", "content": "Hello!"}],
    "first_id": "msg_1",
    "last_id": "msg_1",
    "has_more": False,
}


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


def _json(body: msgspec.Struct) -> Response:
    return Response(to_json(body), media_type="application/json")


def _listed(items: list[dict[str, Any]], http: Request) -> InputItemList:
    query = http.query_params
    if query.get("order", "desc") == "desc":
        items = items[::-1]
    page = page_of(items, lambda item: str(item["id"]), query, (_LISTED, _MOST_LISTED))
    return InputItemList(
        data=list(page.items),
        first_id=page.first_id,
        last_id=page.last_id,
        has_more=page.has_more,
    )
