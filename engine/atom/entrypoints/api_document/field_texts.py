"""Descriptions of request fields in the OpenAPI document, out of the table of `request_fields`.

A field's place in a schema is followed to its path in the table; a description that the schema has
already (pydantic's `Field(description=…)`) stays. Called by `openapi` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom.entrypoints.request_fields.field_row import Endpoint, Verdict
from atom.entrypoints.request_fields.field_table import TABLE

_Schema = dict[str, Any]
_BRANCHES = ("anyOf", "oneOf", "allOf")


def describe_fields(schemas: Mapping[str, _Schema], body: str, endpoint: Endpoint) -> None:
    """Write field texts into the schema named `body`, and into the schemas that it refers to."""
    texts = {
        row.path: row.note
        for row in TABLE
        if endpoint in row.endpoints and row.verdict is Verdict.HONOURED
    }
    _describe(schemas[body], "", texts, schemas)


def _describe(
    schema: _Schema, path: str, texts: Mapping[str, str], schemas: Mapping[str, _Schema]
) -> None:
    for found, inner in _objects(schema, path, schemas):
        for name, value in found["properties"].items():
            place = f"{inner}.{name}" if inner else name
            text = texts.get(place)
            if text and "description" not in value:
                value["description"] = text
            if text or place in texts:
                _describe(value, place, texts, schemas)


def _objects(
    schema: _Schema, path: str, schemas: Mapping[str, _Schema]
) -> Iterator[tuple[_Schema, str]]:
    """Yield the objects that a value of the schema may be, or is a list of, each with its path."""
    if "$ref" in schema:
        yield from _objects(schemas[schema["$ref"].rpartition("/")[2]], path, schemas)
    if "properties" in schema:
        yield schema, path
    if isinstance(schema.get("items"), dict):
        yield from _objects(schema["items"], f"{path}[]", schemas)
    for branch in _BRANCHES:
        for choice in schema.get(branch, ()):
            yield from _objects(choice, path, schemas)
