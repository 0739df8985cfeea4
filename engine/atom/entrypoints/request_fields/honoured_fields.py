"""Request fields that have an effect: those that a request model declares, at every depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from atom.entrypoints.request_fields.field_row import FieldRow, Verdict
from atom.entrypoints.request_fields.request_body import RequestBody, StrictModel


def honoured_fields(kind: type[RequestBody]) -> tuple[FieldRow, ...]:
    """Return a row for each declared field, with the field's text as its note. A path that several
    kinds of an object have is one row, with the texts of all."""
    rows: dict[str, FieldRow] = {}
    for path, text, annotation in _declared(kind, "", ()):
        note = rows[path].note if path in rows else ""
        rows[path] = FieldRow(
            path,
            (kind.endpoint,),
            Verdict.HONOURED,
            note if text in note else f"{note} {text}".strip(),
            opaque=_is_opaque(annotation),
            closed=any(found.closed for _, found in _objects_in(annotation)),
        )
    return tuple(rows.values())


def _declared(
    kind: type[StrictModel], prefix: str, outer: tuple[type[StrictModel], ...]
) -> Iterator[tuple[str, str, Any]]:
    """Yield the path, the text and the type of each field, outer ones first. outer: the models that
    the fields are in, since a model may hold itself."""
    for name, field in kind.model_fields.items():
        path = prefix + (field.alias or name)
        yield path, " ".join((field.description or "").split()), field.annotation
        for brackets, found in _objects_in(field.annotation):
            if found not in outer:
                yield from _declared(found, f"{path}{brackets}.", (*outer, kind))


def _objects_in(annotation: Any) -> Iterator[tuple[str, type[StrictModel]]]:
    """Yield the models that a value of this type may hold, and the brackets of their lists."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield "", annotation
    brackets = "[]" if get_origin(annotation) is list else ""
    for part in get_args(annotation):
        for inner, found in _objects_in(part):
            yield brackets + inner, found


def _is_opaque(annotation: Any) -> bool:
    """Return whether a value may be an object whose keys are its sender's own."""
    if annotation is Any or get_origin(annotation) is dict:
        return True
    return any(_is_opaque(part) for part in get_args(annotation))
