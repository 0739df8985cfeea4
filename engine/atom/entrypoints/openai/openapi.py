"""The OpenAPI document: bodies of requests and answers, which the routes read and write themselves.

FastAPI knows the paths; this adds the schemas of the pydantic models that requests are parsed by
and of the structs that answers are made of, so that the document is what the server does. Texts of
request fields are the docstrings of the fields, of answers' fields their `Meta`. Every route may
answer with an error, always in the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from atom.entrypoints.http.access import OPEN_PATHS
from atom.entrypoints.http.errors import ErrorResponse
from atom.entrypoints.kv_transfer.info import KVTransferInfo
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from atom.entrypoints.openai.responses import (
    ChatCompletion,
    Empty,
    Health,
    Load,
    ModelCard,
    ModelList,
    Sleeping,
    Text,
    TextCompletion,
    TokenizerInfo,
    Tokens,
    Traces,
    Version,
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
    Health,
    KVTransferInfo,
    Load,
    ModelCard,
    ModelList,
    Sleeping,
    Text,
    TextCompletion,
    TokenizerInfo,
    Tokens,
    Traces,
    Version,
)
_REFERENCE = "#/components/schemas/{model}"


def body_of(kind: type[BaseModel], example: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe a request body, for a route's `openapi_extra`. example: one that works as it is; the
    served model's name is put into it."""
    return {"requestBody": {"required": True, "content": _json_of(kind.__name__, example)}}


def answers_of(
    kind: type[msgspec.Struct], *, stream: str = "", example: object = None
) -> dict[int | str, Any]:
    """Describe an answer, for a route's `responses`. stream: media type of the events that it
    may answer with instead; empty for none."""
    content = _json_of(kind.__name__, example)
    if stream:
        # Of no schema: OpenAPI 3.1 has none for the events of a stream, and of a string a client
        # would believe that each event is one.
        content[stream] = {}
    return {200: {"description": "The answer.", "content": content}}


def _json_of(name: str, example: object = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _REFERENCE.format(model=name)}}
    if example is not None:
        content["example"] = example
    return {"application/json": content}


@dataclass(frozen=True, slots=True)
class Beside:
    """Bodies of requests and answers of APIs beside OpenAI's chats and completions. errors: of
    these paths, by the name of their schema."""

    bodies: tuple[type[BaseModel], ...] = ()
    answers: tuple[type[msgspec.Struct], ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """Facts of the running server for the document. needs_key: clients must send one. names:
    asks by which names the model is served; none before there is an engine."""

    needs_key: bool
    names: Callable[[], Sequence[str]]


def document_bodies(app: FastAPI, facts: DocumentFacts, *beside: Beside) -> None:
    """Add to the app's document the schemas that `body_of` and `answers_of` refer to, errors, keys
    and the served model. beside: each the bodies of another API."""
    errors = {path: name for api in beside for path, name in api.errors.items()}

    def build() -> dict[str, Any]:
        names = facts.names()
        if app.openapi_schema is None or not names:
            document = _document(app, beside)
            _add_errors(document, errors)
            _add_security(document, facts.needs_key)
            _name_model(document, names[0] if names else "MODEL")
            app.openapi_schema = document
            if not names:  # the next reader may find the engine there
                app.openapi_schema = None
            return document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]


def _document(app: FastAPI, beside: Sequence[Beside]) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=_DESCRIPTION,
        servers=[{"url": app.root_path or "/", "description": "This server."}],
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        routes=app.routes,
    )
    bodies = (*_BODIES, *(kind for api in beside for kind in api.bodies))
    _, requests = models_json_schema(
        [(kind, "validation") for kind in bodies], ref_template=_REFERENCE
    )
    structs = (*_ANSWERS, *(kind for api in beside for kind in api.answers))
    _, answers = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    for schema in answers.values():
        tag = schema.get("properties", {}).get("type", {})
        if len(tag.get("enum", ())) == 1:  # the tag of one kind, which its struct does not describe
            tag.setdefault("description", f"Always {tag['enum'][0]}.")
    # FastAPI's own schemas are of answers that no route gives.
    document["components"] = {"schemas": {**requests["$defs"], **answers}}
    return document


def _add_errors(document: dict[str, Any], others: Mapping[str, str]) -> None:
    health = {"description": "Why not.", "content": _json_of("Health")}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own, which no route gives
            if path in _PROBES:
                operation["responses"] |= {"503": health}
            else:
                shape = _json_of(others.get(path, "ErrorResponse"))
                error = {"description": "Why there is no answer.", "content": shape}
                operation["responses"] |= {"4XX": error, "5XX": error}


def _add_security(document: dict[str, Any], needs_key: bool) -> None:
    if not needs_key:
        return
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "The key that the server was started with.",
        }
    }
    document["security"] = [{"key": []}]
    for path, operations in document["paths"].items():
        if path in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = []


def _name_model(document: dict[str, Any], name: str) -> None:
    """Put the served model into the examples."""
    schemas = document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "name":
                    parameter["example"] = name
                for example in parameter["schema"].get("examples", ()):
                    parameter["example"] = example
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                schema = schemas[body["schema"]["$ref"].rpartition("/")[2]]
                if "example" in body and "model" in schema["properties"]:
                    body["example"] = {"model": name, **body["example"]}


_DESCRIPTION = """\
The API of one served model: OpenAI's, with vLLM's names for what goes beyond it. Every POST takes
a JSON body; what is wrong with a request is told in `error.message`, with the remedy. Unknown
fields have no effect and are named in the header `X-Ignored-Fields`.
"""
_TAGS = {
    "generation": "Answers of the model.",
    "responses": "Answers in OpenAI's newer form, and those that are kept.",
    "models": "What is served.",
    "adapters": "LoRA adapters that come and go, where the server allows it.",
    "tokens": "The model's own tokenizer.",
    "pooling": "Vectors and scores, of a model that was started for them (--runner pooling).",
    "batches": "Files of requests, answered in the background (--batch-dir).",
    "status": "How the server is; none of these needs a key.",
    "control": "Changes for every client; these always need a key.",
}
# They answer 503 in a different shape.
_PROBES = frozenset({"/health", "/ready", "/ping", "/startup", "/live"})
