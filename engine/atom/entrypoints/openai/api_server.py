"""The HTTP application: routes and error handlers, no logic of their own.

`build_app` is given the state it serves from; who binds the port, starts the engine and handles
signals is entrypoints/server.py.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import atom
from atom.entrypoints.openai.acceptance import accepted
from atom.entrypoints.openai.access import ApiKeyCheck
from atom.entrypoints.openai.body import read_body, timeout_of
from atom.entrypoints.openai.choices import AnswerHead, Answers
from atom.entrypoints.openai.control import control_routes
from atom.entrypoints.openai.errors import http_error, response_for
from atom.entrypoints.openai.frames import AnswerFrames
from atom.entrypoints.openai.health import health_routes
from atom.entrypoints.openai.metrics import metrics_routes
from atom.entrypoints.openai.openapi import answers_of, body_of, document_bodies
from atom.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from atom.entrypoints.openai.response_headers import (
    ID_HEADER,
    ResponseHeaders,
    request_id_of,
)
from atom.entrypoints.openai.responses import (
    ChatCompletion,
    ModelCard,
    ModelList,
    TextCompletion,
    to_json,
)
from atom.entrypoints.openai.serving_chat import ChatEvents, complete_chat, start_chat
from atom.entrypoints.openai.serving_completion import (
    TextEvents,
    complete_text,
    start_completion,
)
from atom.entrypoints.openai.sse import EventStream, until_disconnect
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.openai.tokens import token_routes
from atom.errors import AtomError, RequestError

logger = logging.getLogger(__name__)

_CLIENT_LEFT = Response(status_code=499)  # for the access log; nobody reads it


def build_app(state: ServerState, *, api_key: str | None = None) -> FastAPI:
    app = FastAPI(title="ATOM", version=atom.__version__, redirect_slashes=False)
    _add_chat_route(app, state)
    _add_completion_route(app, state)
    _add_model_routes(app, state)
    app.include_router(health_routes(state))
    app.include_router(metrics_routes(state))
    app.include_router(token_routes(state))
    app.include_router(control_routes(state))
    _add_error_handlers(app)
    document_bodies(app)
    app.add_middleware(ApiKeyCheck, api_key=api_key)
    # Outermost: refusals carry the headers too.
    app.add_middleware(ResponseHeaders, is_ending=lambda: state.is_ending)
    return app


def _add_generation_route(
    app: FastAPI,
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    body: type[BaseModel],
    answer: type[msgspec.Struct],
) -> None:
    """A plain route, the first that is looked at, because FastAPI's own costs as much as half of
    what the endpoint does; and FastAPI's, which is the one that the document shows."""
    app.add_route(path, endpoint, methods=["POST"], include_in_schema=False)
    app.post(
        path,
        openapi_extra=body_of(body),
        responses=answers_of(answer, streams=True),
        tags=["generation"],
    )(endpoint)


def _add_chat_route(app: FastAPI, state: ServerState) -> None:
    async def chat_completions(http: Request) -> Response:
        request = await read_body(http, ChatCompletionRequest)
        engine = state.serving_engine(request.model)
        head = _head(engine.config.model.served_name, "chatcmpl")
        answers = await start_chat(
            engine, request, head.id, timeout_seconds=timeout_of(http, request)
        )
        if request.stream:
            if not await accepted(http, request, answers):
                return _CLIENT_LEFT
            events = ChatEvents(answers, head, with_usage=request.wants_usage_chunk)
            return EventStream(AnswerFrames(answers, events))
        return await _whole(http, answers, lambda: complete_chat(answers, head))

    path = "/v1/chat/completions"
    _add_generation_route(app, path, chat_completions, ChatCompletionRequest, ChatCompletion)


def _add_completion_route(app: FastAPI, state: ServerState) -> None:
    async def completions(http: Request) -> Response:
        request = await read_body(http, CompletionRequest)
        engine = state.serving_engine(request.model)
        head = _head(engine.config.model.served_name, "cmpl")
        answers = await start_completion(
            engine, request, head.id, timeout_seconds=timeout_of(http, request)
        )
        if request.stream:
            if not await accepted(http, request, answers):
                return _CLIENT_LEFT
            events = TextEvents(answers, head, with_usage=request.wants_usage_chunk)
            return EventStream(AnswerFrames(answers, events))
        return await _whole(http, answers, lambda: complete_text(answers, head))

    _add_generation_route(app, "/v1/completions", completions, CompletionRequest, TextCompletion)


async def _whole(
    http: Request, answers: Answers, complete: Callable[[], Awaitable[bytes]]
) -> Response:
    """The answer as one body, unless the client leaves before it is complete."""
    try:
        body = await until_disconnect(http.receive, complete)
    finally:
        answers.close()
    return _CLIENT_LEFT if body is None else Response(body, media_type="application/json")


def _add_model_routes(app: FastAPI, state: ServerState) -> None:
    def card() -> ModelCard:
        model = state.started_engine().config.model
        return ModelCard(
            id=model.served_name,
            created=state.created,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
        )

    @app.get("/v1/models", responses=answers_of(ModelList), tags=["models"])
    async def list_models() -> Response:
        return Response(to_json(ModelList(data=[card()])), media_type="application/json")

    # A model's name may hold slashes: org/name, or the folder it was loaded from.
    @app.get("/v1/models/{name:path}", responses=answers_of(ModelCard), tags=["models"])
    async def get_model(name: str) -> Response:
        found = card()
        if name != found.id:
            raise RequestError(
                f"the model {name!r} is not served here; this server has {found.id!r}",
                param="model",
                status=404,
                code="model_not_found",
            )
        return Response(to_json(found), media_type="application/json")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(AtomError)
    async def known(http: Request, error: AtomError) -> Response:
        return response_for(error)

    @app.exception_handler(HTTPException)
    async def http_layer(http: Request, error: HTTPException) -> Response:
        place = f"{http.method} {http.url.path}"
        if error.status_code == 404:
            return http_error(404, f"there is no {place}; /openapi.json lists what there is")
        if error.status_code == 405:
            allowed = Headers(error.headers)["allow"]
            response = http_error(405, f"{place} is not possible; allowed: {allowed}")
            response.headers["allow"] = allowed
            return response
        return http_error(error.status_code, str(error.detail))

    # Starlette re-raises after this answer, so that the traceback is logged.
    @app.exception_handler(Exception)
    async def unknown(http: Request, error: Exception) -> Response:
        logger.error("request %s failed by a fault of the server", request_id_of(http))
        response = response_for(error)
        response.headers[ID_HEADER] = request_id_of(http)  # it leaves outside of the middleware
        return response


def _head(model: str, prefix: str) -> AnswerHead:
    return AnswerHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)
