"""Negation: the cases of the values that a schema does not accept, for `not`, `if` and oneOf.

A value fails a schema if it fails one of its keywords, each of which concerns one type. A keyword
whose opposite no grammar can express is refused by name. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from atom.structured_outputs.json_schema.cases import (
    ALL_TYPES,
    NUMERIC,
    Case,
    Conjunction,
    Items,
    Members,
    MembersLayer,
    Numbers,
    Place,
    Reading,
    Texts,
    tidy,
)
from atom.structured_outputs.json_schema.keywords import KEPT, Path, refusal
from atom.structured_outputs.json_schema.own_case import Schema, own_case, without
from atom.structured_outputs.json_schema.references import SchemaDocument

_STRING = frozenset(("string",))
_ARRAY = frozenset(("array",))
_OBJECT = frozenset(("object",))
_SAY_NOTHING = frozenset(("$defs", "definitions", "$id", "$schema", "$anchor", "$dynamicAnchor",
                          "$recursiveAnchor", "format", "nullable"))  # fmt: skip
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class _Cases(Protocol):
    document: SchemaDocument

    def cases(self, conjunction: Conjunction) -> list[Case]:
        """List the cases of all places at once."""

    def met(self, left: list[Case], right: list[Case]) -> list[Case]:
        """List every way to keep one of each."""


class Negation:
    def __init__(self, expansion: _Cases) -> None:
        self._expansion = expansion

    def cases(self, schema: Schema, path: Path) -> list[Case]:
        """Return the cases of the values that the schema does not accept. Raises `SchemaError`
        naming the keyword whose opposite is not supported."""
        if "$ref" in schema and self._expansion.document.refs_stand_alone:
            schema = {"$ref": schema["$ref"]}
        found: dict[Case, None] = {}
        if _BOUNDS_SAID & schema.keys():
            found.update(dict.fromkeys(_outside(schema, path)))
        for keyword, value in schema.items():
            if keyword in _BOUNDS or keyword in _SAY_NOTHING or keyword not in KEPT:
                continue
            for case in self._failing(schema, path, keyword, value):
                kept = tidy(case)
                if kept is not None:
                    found[kept] = None
        return list(found)

    def _failing(self, schema: Schema, path: Path, keyword: str, value: Any) -> Iterator[Case]:
        match keyword:
            case "type":
                own = own_case({key: schema[key] for key in ("type", "nullable") if key in schema},
                               path)  # fmt: skip
                yield Case(ALL_TYPES - (own.types if own else frozenset()))
            case "enum":
                yield Case(excluded=tuple(value))
            case "const":
                yield Case(excluded=(value,))
            case "pattern":
                yield Case(_STRING, texts=Texts(patterns=((value, Reading.LACKS),)))
            case "minLength" | "maxLength":
                yield from _counts(value, keyword, _STRING, Texts, "texts")
            case "minItems" | "maxItems":
                yield from _counts(value, keyword, _ARRAY, Items, "items")
            case "minProperties" | "maxProperties":
                yield from _counts(value, keyword, _OBJECT, Members, "members")
            case "required":
                for name in value:
                    absent = without(name)
                    yield Case(_OBJECT, members=absent.members)
            case "properties":
                for name in value:
                    yield _present(name, (Place((*path, keyword, name), negated=True),))
            case _:
                yield from self._combined(path, keyword, value)

    def _combined(self, path: Path, keyword: str, value: Any) -> Iterator[Case]:
        def negated(*below: str | int) -> list[Case]:
            return self._expansion.cases((Place((*path, *below), negated=True),))

        match keyword:
            case "allOf":
                for at in range(len(value)):
                    yield from negated(keyword, at)
            case "anyOf":
                found = [Case()]
                for at in range(len(value)):
                    found = self._expansion.met(found, negated(keyword, at))
                yield from found
            case "not":
                yield from self._expansion.cases((Place((*path, keyword)),))
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                target = self._expansion.document.target(path, keyword)
                yield from self._expansion.cases((Place(target, negated=True),))
            case _:
                raise refusal(
                    path,
                    keyword,
                    "is not kept by this server under not, if, or a oneOf whose parts overlap; "
                    "leave it out there",
                )


_BOUNDS_SAID = frozenset(_BOUNDS)


def _outside(schema: Schema, path: Path) -> Iterator[Case]:
    """Yield the cases of numbers below the lower bound or above the upper one."""
    own = own_case({key: schema[key] for key in _BOUNDS if key in schema}, path)
    if own is None or own.numbers.is_empty:
        yield Case(NUMERIC)
        return
    said = own.numbers
    if said.low is not None:
        yield Case(NUMERIC, numbers=Numbers(high=said.low, high_open=not said.low_open))
    if said.high is not None:
        yield Case(NUMERIC, numbers=Numbers(low=said.high, low_open=not said.high_open))


def _counts(
    value: int, keyword: str, types: frozenset[str], bounds: Any, field: str
) -> Iterator[Case]:
    if keyword.startswith("max"):
        yield Case(types, **{field: bounds(low=value + 1)})
    elif value > 0:
        yield Case(types, **{field: bounds(high=value - 1)})


def _present(name: str, value: Conjunction) -> Case:
    layer = MembersLayer(((name, value),), given=None)
    return Case(_OBJECT, members=Members((layer,), required=(name,)))
