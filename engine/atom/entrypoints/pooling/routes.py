"""Routes of pooling models: from a request's bytes to the whole answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.sse import until_disconnect
from atom.entrypoints.openai.body import read_body, timeout_of
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.pooling.answers import Embeddings, Ranking, Scores
from atom.entrypoints.pooling.embeddings import embed
from atom.entrypoints.pooling.pooled_prompts import Asked
from atom.entrypoints.pooling.requests import (
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from atom.entrypoints.pooling.scores import rerank, score


@dataclass(frozen=True, slots=True)
class _Route:
    """Describe one endpoint. paths: the first one is the one that the document has."""

    paths: tuple[str, ...]
    id_prefix: str
    request: type[PoolingRequest]
    answer: type[msgspec.Struct]
    work: Callable[[Asked, Any], Awaitable[bytes]]
    summary: str
    description: str
    example: dict[str, Any]


_ROUTES = (
    _Route(
        ("/v1/embeddings",),
        "embd",
        EmbeddingRequest,
        Embeddings,
        embed,
        "Turn texts into vectors",
        "Of a model that was started for embeddings: the last token's state, of length 1.",
        {"model": "MODEL", "input": ["What is ATOM?", "An inference engine."]},
    ),
    _Route(
        ("/v1/score", "/score"),
        "score",
        ScoreRequest,
        Scores,
        score,
        "Score pairs of texts",
        "By a reranker's answer to each pair, or by the cosine of two embeddings.",
        {"model": "MODEL", "text_1": "What is ATOM?", "text_2": ["An inference engine.", "Tea."]},
    ),
    _Route(
        ("/v1/rerank", "/rerank", "/v2/rerank"),
        "rerank",
        RerankRequest,
        Ranking,
        rerank,
        "Rank documents by a query",
        "The most relevant first, by the scores of /v1/score.",
        {"model": "MODEL", "query": "What is ATOM?", "documents": ["Tea.", "An engine."]},
    ),
)


POOLING_DOCUMENTED = Beside(
    tuple(route.request for route in _ROUTES), tuple(route.answer for route in _ROUTES)
)


def pooling_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["pooling"])
    for route in _ROUTES:
        handle = partial(_answer, state, route)
        for index, path in enumerate(route.paths):
            router.add_api_route(
                path,
                _handler(handle),
                methods=["POST"],
                name=path.removeprefix("/v1/").replace("/", "_"),
                summary=route.summary,
                description=route.description,
                include_in_schema=index == 0,
                openapi_extra=body_of(route.request, route.example),
                responses=answers_of(route.answer),
            )
    return router


def _handler(
    handle: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def pool(http: Request) -> Response:  # FastAPI injects arguments by signature
        return await handle(http)

    return pool


async def _answer(state: ServerState, route: _Route, http: Request) -> Response:
    client_id = state.clients.of(http.scope)
    with state.body_share() as share:
        turns = state.turns.of(client_id)
        request = await read_body(http, route.request, share, turns)
        engine = state.serving_engine(request.model)
        asked = Asked(
            engine,
            request,
            f"{route.id_prefix}-{request.request_id or token_hex(16)}",
            int(time.time()),
            client_id,
            timeout_of(http, request),
        )
    # The work ends, and its requests are aborted, when the client leaves.
    body = await until_disconnect(http.receive, lambda: route.work(asked, request))
    return (
        Response(status_code=499) if body is None else Response(body, media_type="application/json")
    )
