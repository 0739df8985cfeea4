"""Strings that a notation of calls writes without quotes: the texts that a schema leaves, as
expressions.

The grammar library's schemas describe JSON, where a string is quoted. Pure.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from atom.structured_outputs.json_schema.formats import format_expression
from atom.structured_outputs.json_schema.keywords import REFERENCES, Path, refusal
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.regex import RegexError, literal_text, within

# Expressions that one text matches together; none: any text.
BareText = tuple[str, ...]
_MOST = 512
_DEEPEST = 64
_REFUSED = ("not", "if")


def bare_texts(document: SchemaDocument, path: Path, depth: int = _DEEPEST) -> list[BareText]:
    """Return the alternatives that a place leaves for a string; none if it leaves no string. Raises
    `SchemaError`."""
    schema = document.at(path)
    if isinstance(schema, bool):
        return [()] if schema else []
    if depth == 0:
        raise refusal(path, "$ref", "refers to itself with nothing in between; mend it")
    for keyword in _REFUSED:
        if keyword in schema:
            raise refusal(path, keyword, "is not kept for a text without quotes; leave it out")
    groups = [_own(schema, path)]
    for keyword in REFERENCES:
        if keyword in schema:
            groups.append(bare_texts(document, document.target(path, keyword), depth - 1))
    for at in range(len(schema.get("allOf", ()))):
        groups.append(bare_texts(document, (*path, "allOf", at), depth - 1))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            parts = range(len(schema[keyword]))
            options = (bare_texts(document, (*path, keyword, at), depth - 1) for at in parts)
            groups.append([one for option in options for one in option])
    count = 1
    for group in groups:
        count *= len(group)
    if count > _MOST:
        raise refusal(path, "anyOf", "has too many alternatives together; make it smaller")
    return [tuple(dict.fromkeys(sum(chosen, ()))) for chosen in product(*groups)]


def _own(schema: dict[str, Any], path: Path) -> list[BareText]:
    types = schema.get("type", "string")
    if "string" not in ([types] if isinstance(types, str) else types):
        return []
    held: list[str] = []
    if "pattern" in schema:
        try:
            held.append(within(schema["pattern"]))
        except RegexError as error:
            raise refusal(path, "pattern", f"is not kept: {error}") from None
    expression = format_expression(schema.get("format", ""))
    if expression is not None:
        held.append(expression)
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if low or high is not None:
        held.append(f"(?s:.){{{low},{'' if high is None else high}}}")
    if "enum" not in schema and "const" not in schema:
        return [tuple(held)]
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if "const" in schema:
        values = [value for value in values if value == schema["const"]]
    return [(literal_text(value), *held) for value in values if isinstance(value, str)]
