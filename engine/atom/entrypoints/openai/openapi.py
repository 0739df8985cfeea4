"""The OpenAPI document: bodies of requests and answers, which the routes read and write themselves.

FastAPI knows the paths; this adds the schemas of the pydantic models that requests are parsed by
and of the structs that answers are made of, so that the document is what the server does. Every
route may answer with an error, always in the same shape.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from atom.entrypoints.http.errors import ErrorResponse
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from atom.entrypoints.openai.responses import (
    ChatCompletion,
    Empty,
    ModelCard,
    ModelList,
    Text,
    TextCompletion,
    Tokens,
    Traces,
)

_BODIES: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
_ANSWERS: tuple[type[msgspec.Struct], ...] = (
    ChatCompletion,
    Empty,
    ErrorResponse,
    ModelCard,
    ModelList,
    Text,
    TextCompletion,
    Tokens,
    Traces,
)
_REFERENCE = "#/components/schemas/{model}"
# Of no schema: OpenAPI 3.1 has none for the events of a stream, and of a string a client would
# believe that each event is one.
_EVENTS: dict[str, dict[str, object]] = {"text/event-stream": {}}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe a request body, for a route's `openapi_extra`."""
    return {"requestBody": {"required": True, "content": _json_of(kind.__name__)}}


def answers_of(kind: type[msgspec.Struct], *, streams: bool = False) -> dict[int | str, Any]:
    """Describe an answer, for a route's `responses`. streams: it may answer with events instead."""
    content = _json_of(kind.__name__) | (_EVENTS if streams else {})
    return {200: {"description": "the answer", "content": content}}


def _json_of(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}


def document_bodies(app: FastAPI) -> None:
    """Makes the app's document include what `body_of` and `answers_of` refer to, and errors."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, requests = models_json_schema(
                [(kind, "validation") for kind in _BODIES], ref_template=_REFERENCE
            )
            _, answers = msgspec.json.schema_components(
                _ANSWERS, ref_template="#/components/schemas/{name}"
            )
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(requests["$defs"], **answers)
            _add_errors(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]


def _add_errors(document: dict[str, Any]) -> None:
    error = {"description": "why not", "content": _json_of("ErrorResponse")}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own, which no route gives
            if path not in _PROBES:
                operation["responses"] |= {"4XX": error, "5XX": error}


# They answer 503 in a shape of their own.
_PROBES = frozenset({"/health", "/ready", "/ping", "/live"})
