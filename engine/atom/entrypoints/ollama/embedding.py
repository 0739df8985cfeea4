"""/api/embed and the older /api/embeddings: a translation to the inputs of /v1/embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_hex
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import until_disconnect
from atom.entrypoints.ollama.shapes import OllamaName
from atom.entrypoints.openai.body import read_body, timeout_of
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.pooling.embeddings import embedded
from atom.entrypoints.pooling.pooled_prompts import Asked, Pooled
from atom.entrypoints.pooling.requests import MAX_INPUTS, EmbeddingRequest
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.request_body import RequestBody

_NS = 10**9
_AS_THE_CONTEXT_HOLDS = -1


class OllamaEmbedRequest(RequestBody):
    """A body of POST /api/embed."""

    endpoint: ClassVar = Endpoint.OLLAMA_EMBED

    model: OllamaName
    """Name of the served model; the one that is served, unless it is sent."""
    input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
    """Text, or texts; each gets a vector."""
    truncate: bool | None = None
    """Cut an input that is longer than the context, unless it is false; then it is refused."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Number of leading values of each vector to keep, normalised to length 1 again."""

    def translated(self) -> EmbeddingRequest:
        """Return the same request of /v1/embeddings."""
        return EmbeddingRequest(
            model=self.model,
            input=self.input,
            dimensions=self.dimensions,
            truncate_prompt_tokens=None if self.truncate is False else _AS_THE_CONTEXT_HOLDS,
        )

    def answer(self, pooled: Pooled, seconds: float) -> dict[str, Any]:
        """Return the answer. seconds: since the request was read."""
        return {
            "model": self.model,
            "embeddings": pooled.vectors.tolist(),
            "total_duration": int(seconds * _NS),
            "load_duration": 0,
            "prompt_eval_count": pooled.usage.prompt_tokens,
        }


class OllamaEmbeddingsRequest(RequestBody):
    """A body of POST /api/embeddings."""

    endpoint: ClassVar = Endpoint.OLLAMA_EMBEDDINGS

    model: OllamaName
    """Name of the served model; the one that is served, unless it is sent."""
    prompt: str
    """Text that gets a vector."""

    def translated(self) -> EmbeddingRequest:
        """Return the same request of /v1/embeddings."""
        return EmbeddingRequest(
            model=self.model, input=self.prompt, truncate_prompt_tokens=_AS_THE_CONTEXT_HOLDS
        )

    def answer(self, pooled: Pooled, seconds: float) -> dict[str, Any]:
        """Return the answer, which states no time."""
        return {"embedding": pooled.vectors[0].tolist()}


_Kind = type[OllamaEmbedRequest] | type[OllamaEmbeddingsRequest]
_KINDS: tuple[_Kind, ...] = (OllamaEmbedRequest, OllamaEmbeddingsRequest)


def add_embedding_routes(router: APIRouter, state: ServerState) -> None:
    for kind in _KINDS:
        router.add_api_route(f"/{kind.endpoint}", _handler(state, kind), methods=["POST"])


def _handler(state: ServerState, kind: _Kind) -> Callable[[Request], Any]:
    async def embed(http: Request) -> Response:  # FastAPI injects arguments by signature
        started = time.monotonic()
        client_id = state.clients.of(http.scope)
        with state.body_share() as share:
            given = await read_body(http, kind, share, state.turns.of(client_id))
            request = given.translated()
            asked = Asked(
                state.serving_engine(request.model),
                request,
                f"ollama-{token_hex(16)}",
                int(time.time()),
                client_id,
                timeout_of(http, request),
            )
        pooled = await until_disconnect(http.receive, lambda: embedded(asked, request))
        if pooled is None:
            return Response(status_code=499)
        answer = given.answer(pooled, time.monotonic() - started)
        return Response(to_json(answer), media_type="application/json")

    return embed
