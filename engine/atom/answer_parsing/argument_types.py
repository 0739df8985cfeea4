"""Convert arguments that a family writes without types to JSON, by the tool's own schema.

    <parameter=days>3</parameter>     {"days": 3} if days is an integer, {"days": "3"} if it is a
                                      string

Pure. Called by parsers of notations in XML's manner.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 8  # of references and unions
_WORDS = {"True": "true", "False": "false", "None": "null"}
_KINDS: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array",
    type(None): "null",
}  # fmt: skip


def argument_types(parameters: Mapping[str, Any] | None, key: str) -> frozenset[str]:
    """Return the JSON schema types that this argument may have; empty if the schema has none."""
    root = parameters or {}
    properties = root.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return frozenset(_types(schema, root, _DEEPEST))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not depth:
        return
    said = schema.get("type")
    if said is not None:
        yield from [said] if isinstance(said, str) else [each for each in said if each]
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _types(_resolved(reference, root), root, depth - 1)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    for value in [*values, *([schema["const"]] if "const" in schema else [])]:
        yield _KINDS.get(type(value), "string")
    for union in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(union) or ():
            yield from _types(each, root, depth - 1)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def only_string(types: frozenset[str]) -> bool:
    return types == {"string"}


def json_of(text: str, types: frozenset[str]) -> str:
    """Write a value's text as JSON. A value of none of the types becomes a string, so that no text
    is lost."""
    if only_string(types):
        return _string(text)
    written = text.strip()
    for candidate in (written, _WORDS.get(written, "")):
        kind = _kind(candidate)
        if kind and _fits(kind, types):
            return candidate
    if not types or types & {"object", "array"}:
        literal = _literal(written)
        if literal and (not types or _kind(literal) in types):
            return literal
    return _string(text)


def _kind(text: str) -> str:
    """Return the type of a JSON text; "" if the text is not JSON."""
    if not text:
        return ""
    try:
        return _KINDS[type(json.loads(text, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return ""


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fits(kind: str, types: frozenset[str]) -> bool:
    if not types:
        return kind != "string"  # those are written without quotes
    if kind == "string":
        return False
    return kind in types or (kind in ("integer", "number") and bool(types & {"integer", "number"}))


def _literal(text: str) -> str:
    """Convert a list or an object in Python's notation to JSON; return "" for any other text."""
    if not text.startswith(("[", "{")):
        return ""
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ""


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
