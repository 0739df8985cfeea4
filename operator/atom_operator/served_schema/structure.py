"""Check a value against a structural schema: unknown fields, types, bounds, keys of lists. Pure.

The verdict is that of an API server with strict field validation, which kubectl asks for. The words
are ours: the field, the fault and the remedy. Rules in CEL are checked by cel_rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from atom_operator.domain import FieldProblem
from atom_operator.served_schema.near_names import did_you_mean, nearest, place_of

_INT64 = 2**63
_SHOWN = 60  # characters of a refused value
_TYPES: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "object": ("an object", Mapping),
    "array": ("a list", list),
    "string": ("a string", str),
    "boolean": ("true or false", bool),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
}
Schema = Mapping[str, Any]


def structure_problems(schema: Schema, value: Any, path: str) -> Iterator[FieldProblem]:
    """Yield every problem of `value`, which a user wrote at `path`."""
    yield from _Check(schema, path).problems(schema, value, path)


class _Check:
    """Walk over one value. `root` is the schema in which misplaced fields are looked up."""

    def __init__(self, root: Schema, root_path: str) -> None:
        self._root, self._root_path = root, root_path

    def problems(self, schema: Schema, value: Any, path: str) -> Iterator[FieldProblem]:
        wrong = _wrong_type(schema, value)
        if wrong is not None:
            yield FieldProblem(path, wrong)
            return
        yield from (FieldProblem(path, words) for words in _value_problems(schema, value))
        if isinstance(value, Mapping):
            yield from self._of_object(schema, value, path)
        elif isinstance(value, list):
            yield from _repeated(schema, value, path)
            for position, item in enumerate(value if "items" in schema else ()):
                yield from self.problems(schema["items"], item, f"{path}[{position}]")

    def _of_object(
        self, schema: Schema, value: Mapping[str, Any], path: str
    ) -> Iterator[FieldProblem]:
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields", False)
        for name, item in value.items():
            below, place = fields.get(name, rest), f"{path}.{name}"
            if below is not None:
                if item is not None or below.get("nullable"):  # a null means an absent field
                    yield from self.problems(below, item, place)
            elif not open_ended:
                yield FieldProblem(place, f"unknown field{self._meant(str(name), fields)}")
        for name in schema.get("required", ()):
            if value.get(name) is None and "default" not in fields.get(name, {}):
                yield FieldProblem(f"{path}.{name}", "is required; set it")

    def _meant(self, name: str, fields: Mapping[str, Any]) -> str:
        return did_you_mean(nearest(name, fields) or self._elsewhere(name)) or "; remove it"

    def _elsewhere(self, name: str) -> str | None:
        return place_of(name, self._root, self._root_path)


def _wrong_type(schema: Schema, value: Any) -> str | None:
    """Return why the value is of another type than the schema asks for; None if it is not."""
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, str) or _is_whole(value)
        return None if fits else f"must be a whole number or a string, got {shown(value)}"
    if "type" not in schema:
        return None
    words, types = _TYPES[schema["type"]]
    fits = isinstance(value, types) and not (isinstance(value, bool) and types is not bool)
    if fits and schema["type"] == "integer":
        fits = _is_whole(value)
    return None if fits else f"must be {words}, got {shown(value)}"


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _value_problems(schema: Schema, value: Any) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(map(str, schema["enum"]))
        near = nearest(value, map(str, schema["enum"])) if isinstance(value, str) else None
        yield f"{shown(value)} is none of {choices}{did_you_mean(near)}"
    if isinstance(value, str):
        yield from _of_text(schema, value)
    elif isinstance(value, list):
        yield from _of_count(schema, len(value), "Items", "items")
    elif isinstance(value, Mapping):
        yield from _of_count(schema, len(value), "Properties", "entries")
    elif not isinstance(value, bool) and isinstance(value, (int, float)):
        yield from _of_number(schema, value)


def _of_text(schema: Schema, value: str) -> Iterator[str]:
    yield from _of_count(schema, len(value), "Length", "characters")
    pattern = schema.get("pattern")
    if pattern is not None and not _compiled(pattern).search(value):
        yield f"{shown(value)} does not have the form {pattern}"


def _of_count(schema: Schema, count: int, name: str, words: str) -> Iterator[str]:
    least, most = schema.get(f"min{name}"), schema.get(f"max{name}")
    if least is not None and count < least:
        yield f"has {count} {words}, and must have at least {least}"
    if most is not None and count > most:
        yield f"has {count:,} {words}, and may have at most {most:,}"


def _of_number(schema: Schema, value: float) -> Iterator[str]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (schema.get("exclusiveMinimum") and value == least)):
        bound = "more than" if schema.get("exclusiveMinimum") else "at least"
        yield f"must be {bound} {least:,}, got {value:,}"
    if most is not None and (value > most or (schema.get("exclusiveMaximum") and value == most)):
        bound = "less than" if schema.get("exclusiveMaximum") else "at most"
        yield f"must be {bound} {most:,}, got {value:,}"


def _repeated(schema: Schema, items: Sequence[Any], path: str) -> Iterator[FieldProblem]:
    """Yield a problem for each item of a set or a keyed list that occurs twice."""
    kind, names = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    if kind not in ("set", "map"):
        return
    seen: list[Any] = []
    for position, item in enumerate(items):
        if kind == "map" and not isinstance(item, Mapping):
            continue
        key = item if kind == "set" else [item.get(name) for name in names or ()]
        if key in seen:
            repeated = shown(item if kind == "set" else key[0])
            yield FieldProblem(f"{path}[{position}]", f"repeats {repeated}; name each item once")
        seen.append(key)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # RE2's `$` matches at the end alone; Python's also matches before a final line break.
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def shown(value: Any) -> str:
    """Return a refused value as YAML writers know it, cut to fit a line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f'"{value}"' if isinstance(value, str) else f"{value}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
