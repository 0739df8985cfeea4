"""The routes of Ollama's API that do not generate, and its shape of errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from atom.entrypoints.http.errors import ReshapedErrors
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.ollama.embedding import add_embedding_routes
from atom.entrypoints.ollama.shapes import (
    OllamaChatRequest,
    OllamaError,
    OllamaGenerateRequest,
    OllamaLine,
)
from atom.entrypoints.openai.body import read_parsed
from atom.entrypoints.openai.openapi import Beside
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.startup.supported_endpoints import CHAT, COMPLETIONS, EMBEDDINGS
from atom.errors import RequestError
from atom.model_engine.front.engine_lifecycle import EngineState

SPOKEN_VERSION = "0.12.0"  # of Ollama's API: clients ask for it to know what they may send
PREFIX = "/api/"
_NEVER = "9999-12-31T23:59:59Z"  # a model is not unloaded by time
OLLAMA_DOCUMENTED = Beside(
    (OllamaChatRequest, OllamaGenerateRequest),
    (OllamaError, OllamaLine),
    {"/api/chat": "OllamaError", "/api/generate": "OllamaError"},
)


def ollama_list_routes(states: Sequence[ServerState]) -> APIRouter:
    """Build the routes that list the models of a server, of one model or of several."""
    router = APIRouter(include_in_schema=False)

    @router.get("/api/tags")
    async def tags() -> Response:
        return _json({"models": [each for state in states for each in _listed(state)]})

    @router.get("/api/ps")
    async def running() -> Response:
        awake = [state for state in states if state.status.state is not EngineState.ASLEEP]
        return _json({"models": [_loaded(each) for state in awake for each in _listed(state)]})

    return router


def _listed(state: ServerState) -> Iterator[dict[str, Any]]:
    """Yield a description of each name of a model. Raises as `ServerState.started_engine`."""
    known = _described(state)
    for name in state.all_names():
        yield {"name": name, "model": name, **known}


def _loaded(listed: dict[str, Any]) -> dict[str, Any]:
    """Describe a model that is on the device."""
    return {**listed, "size_vram": listed["size"], "expires_at": _NEVER}


def _described(state: ServerState) -> dict[str, Any]:
    engine = state.started_engine()
    report, family = engine.status.report, engine.config.model.architecture
    stored = "" if report is None else report.dtype
    return {
        "modified_at": datetime.fromtimestamp(state.created, UTC).isoformat(),
        "size": 0 if report is None else report.weights_bytes,
        "digest": engine.pauses.weights_version or "",
        "details": {"format": "safetensors", "family": family, "quantization_level": stored},
    }


def ollama_routes(state: ServerState) -> APIRouter:
    """Build the routes of one model. Ollama's own pages describe them, so the document here does
    not."""
    router = APIRouter(include_in_schema=False)
    add_embedding_routes(router, state)

    @router.post("/api/show")
    async def show(http: Request) -> Response:
        with state.bodies.share() as share:
            turns = state.turns.of(state.clients.of(http.scope))
            engine = state.serving_engine(await read_parsed(http, share, turns, name_asked))
        endpoints, formats = state.offer(engine).endpoints, engine.processor.answer_formats
        can = {
            "completion": COMPLETIONS in endpoints,
            "tools": CHAT in endpoints and formats.calls is not None,
            "thinking": CHAT in endpoints and formats.reasoning is not None,
            "vision": engine.images is not None,
            "embedding": EMBEDDINGS in endpoints,
        }
        family, context = engine.config.model.architecture, engine.config.model.max_model_len
        info = {"general.architecture": family, f"{family}.context_length": context}
        capabilities = [name for name, is_there in can.items() if is_there]
        return _json({**_described(state), "model_info": info, "capabilities": capabilities})

    @router.get("/api/version")
    async def version() -> Response:
        return _json({"version": SPOKEN_VERSION})

    return router


def name_asked(body: bytearray) -> str:
    """Read the name of the model in a body, by the newer name of the field or the older. Raises
    `RequestError`."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON object: {error}") from None
    name = found.get("model") or found.get("name")
    if not isinstance(name, str):
        raise RequestError("model: is required, a text", param="model")
    return name.removesuffix(":latest")


def ollama_send(scope: Scope, send: Send) -> Send | None:
    """Return the `send` of an answer of Ollama's addresses, which sends an error as
    {"error": message}; None for other addresses."""
    if not scope["path"].startswith(PREFIX):
        return None
    return ReshapedErrors(send, lambda _, found: OllamaError(found.error.message)).send


def _json(body: object) -> Response:
    return Response(to_json(body), media_type="application/json")
