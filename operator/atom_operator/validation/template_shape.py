"""Checks that each value of an overlay has the type that Kubernetes gives its field. Pure.

One judge for every overlay of a pod template: spec.template, spec.jobs.template,
spec.canary.change.template, and the template of an AtomProfile or of the chart's defaults. The API
server stores an overlay without looking into it. An overlay that passes here can be merged and read
by planning without an exception; the API server judges ranges and names, and fields of a newer
Kubernetes. Called by validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, field_of, lacking_keys
from atom_operator.domain import FieldProblem

_QUANTITY = re.compile(
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
)
_MOST_DEPTH = 40
_SECTIONS = ("metadata", "spec")
_PATCH = "$patch"
_LISTING = ("$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")  # have a list each


def shape_problems(template: Mapping[str, Any], place: str) -> Iterator[FieldProblem]:
    """Yield every value of an overlay that does not have its field's type. `place`: the field that
    holds the overlay."""
    for key in template:
        if key not in _SECTIONS:
            yield FieldProblem(f"{place}.{key}", "unknown; a pod template has metadata and spec")
    yield from _of_map(template, PodField(ROOT), place, 0)


def key_problems(template: Mapping[str, Any], place: str) -> Iterator[FieldProblem]:
    """Yield the items of an overlay's lists that lack the key by which they are merged."""
    for path, key in lacking_keys(template):
        yield FieldProblem(f"{place}.{path}", f"lacks {key}, which identifies it; set it")


def _of_map(
    value: Mapping[str, Any], field: PodField, path: str, depth: int
) -> Iterator[FieldProblem]:
    if depth > _MOST_DEPTH:
        yield FieldProblem(path, "is nested deeper than any field of a pod; leave it out")
        return
    for name, inner in value.items():
        if str(name).startswith("$"):  # the merge knows its directives
            yield from _of_directive(name, inner, f"{path}.{name}")
            continue
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
    elif isinstance(item, Mapping) and set(item) == {_PATCH}:
        return  # how to merge the list
    else:
        yield from _of_value(item, PodField(field.type), path, depth)


def _of_directive(name: str, value: Any, path: str) -> Iterator[FieldProblem]:
    """Check a directive, which lists names, or items by their keys."""
    if not name.startswith(_LISTING):
        return
    if not isinstance(value, list):
        yield FieldProblem(path, f"must be a list, got {_short(value)}")
        return
    may_have_keys = not name.startswith("$retainKeys")
    for number, item in enumerate(value):
        keys = item.values() if may_have_keys and isinstance(item, Mapping) else [item]
        if any(isinstance(key, list | Mapping) for key in keys):
            yield FieldProblem(f"{path}[{number}]", f"must be a name, got {_short(item)}")


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
