"""Whether every value of spec.template has the type that Kubernetes gives its field. Pure.

The API server keeps spec.template as it is written, so nothing has looked at it before. What passes
here can be merged, and read by planning; ranges and names stay the API server's to judge, and
so do fields of a newer Kubernetes. Called by validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, field_of
from atom_operator.domain import FieldProblem

_QUANTITY = re.compile(
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
)
_MOST_DEPTH = 40


def shape_problems(template: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield every value that cannot be what its field asks for."""
    yield from _of_map(template, PodField(ROOT), "spec.template", 0)


def _of_map(
    value: Mapping[str, Any], field: PodField, path: str, depth: int
) -> Iterator[FieldProblem]:
    if depth > _MOST_DEPTH:
        yield FieldProblem(path, "is nested deeper than any field of a pod; leave it out")
        return
    for name, inner in value.items():
        if not isinstance(name, str) or name.startswith("$"):
            continue  # the merge knows its directives
        where = f"{path}.{name}" if field.container != "map" else f"{path}[{name}]"
        known = PodField(field.type) if field.container == "map" else field_of(field.type, name)
        yield from _of_value(inner, known, where, depth)


def _of_value(value: Any, field: PodField, path: str, depth: int) -> Iterator[FieldProblem]:
    if value is None:
        return  # removes the field
    if field.container == "list":
        if not isinstance(value, list):
            yield FieldProblem(path, f"must be a list, got {_short(value)}")
            return
        for number, item in enumerate(value):
            yield from _of_item(item, field, f"{path}[{number}]", depth)
    elif field.container == "map" or not field.is_leaf:
        if not isinstance(value, Mapping):
            yield FieldProblem(path, f"must be an object, got {_short(value)}")
            return
        yield from _of_map(value, field, path, depth + 1)
    elif not _is_leaf(value, field.type):
        yield FieldProblem(path, f"must be {_WORDS[field.type]}, got {_short(value)}")


def _of_item(item: Any, field: PodField, path: str, depth: int) -> Iterator[FieldProblem]:
    if item is None:
        yield FieldProblem(path, "must not be null; leave the item out")
    elif isinstance(item, Mapping) and "$patch" in item and set(item) == {"$patch"}:
        return  # how to merge the list
    else:
        yield from _of_value(item, PodField(field.type), path, depth)


_WORDS = {
    "string": "a string (put it in quotes)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "quantity": "a quantity such as 4Gi or 500m",
    "int-or-string": "a whole number or a string",
}


def _is_leaf(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return whole
        case "number":
            return number
        case "boolean":
            return isinstance(value, bool)
        case "quantity":
            return number or (isinstance(value, str) and bool(_QUANTITY.match(value)))
        case "int-or-string":
            return whole or isinstance(value, str)
        case _:
            return True


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
