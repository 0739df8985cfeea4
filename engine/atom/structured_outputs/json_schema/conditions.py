"""`not`, `if` and what one member's presence asks for, as alternatives.

The grammar library has no negation. The negation of a type, of required members, and of values if
the schema lists all of them, is a schema again; others are refused by place. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema.keywords import (
    ANNOTATIONS,
    TYPES,
    Path,
    SchemaError,
    refusal,
)
from atom.structured_outputs.json_schema.values import plain

Schema = dict[str, Any]
Rewrite = Callable[[Path], Any]
_PRESENCE = ("dependentRequired", "dependentSchemas", "dependencies")
_MOST_EXCLUSIVE = 6
_KEPT = (
    "is kept for types, required members, and const or enum where the schema lists the values; "
    "write the values that are wanted, or anyOf"
)


def conditions(schema: Schema, path: Path, rewrite: Rewrite) -> list[Schema]:
    """Return the demands of a place's conditional keywords on a value. Raises `SchemaError`."""
    found = [
        _present(name, asked, (*path, keyword, name), rewrite)
        for keyword in _PRESENCE
        for name, asked in schema.get(keyword, {}).items()
    ]
    if "not" in schema:
        found.append(_either(_negated(schema["not"], schema, "not", path)))
    branches = [keyword for keyword in ("then", "else") if keyword in schema]
    if "if" in schema and branches:
        found.append(_chosen(schema, path, rewrite))
    return [one for one in found if one != {}]


def exclusive(schema: Schema, path: Path, rewrite: Rewrite) -> list[Any] | None:
    """Return the alternatives of `oneOf`, each without the values of the others; None if these are
    not kept, so that the library has to see that the parts differ."""
    parts = schema["oneOf"]
    if not 1 < len(parts) <= _MOST_EXCLUSIVE:
        return None
    try:
        denied = [_either(_negated(part, schema, "oneOf", path)) for part in parts]
    except SchemaError:
        return None
    return [
        {"allOf": [rewrite((*path, "oneOf", at)), *denied[:at], *denied[at + 1 :]]}
        for at in range(len(parts))
    ]


def _present(name: str, asked: Any, path: Path, rewrite: Rewrite) -> Schema:
    absent = {"properties": {name: False}}
    if isinstance(asked, list):
        return {"anyOf": [absent, {"required": [name, *asked]}]} if asked else {}
    return {"anyOf": [absent, {"allOf": [{"required": [name]}, rewrite(path)]}]}


def _chosen(schema: Schema, path: Path, rewrite: Rewrite) -> Schema:
    """Return `if`, `then` and `else` as two alternatives."""

    def branch(keyword: str) -> list[Any]:
        return [rewrite((*path, keyword))] if keyword in schema else []

    options = [{"allOf": [rewrite((*path, "if")), *branch("then")]}]
    for denied in _negated(schema["if"], schema, "if", path):
        options.append({"allOf": [denied, *branch("else")]})
    return _either(options)


def _either(options: list[Any]) -> Schema:
    return {"anyOf": options} if len(options) != 1 else {"allOf": options}


def _negated(denied: Any, base: Schema, keyword: str, path: Path) -> list[Any]:
    """Return alternatives that together are the values that `denied` does not fit. base: the schema
    that the values fit besides."""
    if isinstance(denied, bool):
        return [] if denied else [{}]
    options: list[Any] = []
    for name, value in denied.items():
        if name == "type":
            options.append(without_type(value, keyword, path))
        elif name == "required":
            options += [{"type": ["object"], "properties": {one: False}} for one in value]
        elif name == "properties":
            for member, one in value.items():
                options.append(_other_member(member, one, base, keyword, path))
        elif name in ("const", "enum"):
            options.append(_others(denied, base, keyword, path))
        elif name not in ANNOTATIONS:
            raise refusal(path, keyword, _KEPT)
    return options


def _other_member(name: str, denied: Any, base: Schema, keyword: str, path: Path) -> Schema:
    members = base.get("properties", {})
    own = members.get(name, {})
    others = _negated(denied, own if isinstance(own, dict) else {}, keyword, path)
    return {"type": ["object"], "required": [name], "properties": {name: _either(others)}}


def _others(denied: Schema, base: Schema, keyword: str, path: Path) -> Schema:
    """Return the listed values but the denied ones."""
    listed = base.get("enum", [base["const"]] if "const" in base else None)
    if listed is None and base.get("type") == "boolean":
        listed = [True, False]
    if listed is None:
        raise refusal(path, keyword, _KEPT)
    gone = {exact_json.key(value) for value in denied.get("enum", [denied.get("const")])}
    return {"enum": [plain(value) for value in listed if exact_json.key(value) not in gone]}


def without_type(denied: Any, keyword: str, path: Path) -> Schema:
    """Return a schema of the values of all other types."""
    kinds = [denied] if isinstance(denied, str) else denied
    gone = {part for kind in kinds for part in TYPES[kind]}
    if "integer" in gone and "fraction" not in gone:
        raise refusal(path, keyword, "of type integer is not kept; write the types that are wanted")
    left = [kind for kind, parts in TYPES.items() if gone.isdisjoint(parts) and kind != "integer"]
    return {"type": left} if left else {"enum": []}
