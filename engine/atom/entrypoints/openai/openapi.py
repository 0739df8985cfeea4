"""The OpenAPI document: the request bodies that the routes parse themselves, added to FastAPI's."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_BODIES: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
_REFERENCE = "#/components/schemas/{model}"


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """What a route's `openapi_extra` says of its body."""
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document_bodies(app: FastAPI) -> None:
    """Makes the app's document include the schemas that `body_of` refers to."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, schemas = models_json_schema(
                [(kind, "validation") for kind in _BODIES], ref_template=_REFERENCE
            )
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
