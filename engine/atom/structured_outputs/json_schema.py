"""Which JSON schemas are enforced to the letter, and why another one is refused.

xgrammar compiles most of JSON schema and passes over what it does not know. An answer would then
look guided and yet break the schema, so a keyword that would be passed over is refused here, by
name and place. Plain annotations (title, description, default, …) are welcome. Pure; used by
StructuredOutputsParams. Raises ValueError with the reason; whose field it is, the caller knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_SCHEMA_DEPTH = 64

_NOT_ENFORCED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired",
    "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
# Keyword → the type that must stand beside it: without one it is passed over.
_LIMITS_OF_TYPE = {
    **dict.fromkeys(("minLength", "maxLength", "pattern"), ("string",)),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        ("number", "integer"),
    ),
    **dict.fromkeys(("minItems", "maxItems"), ("array",)),
    **dict.fromkeys(("required", "minProperties", "maxProperties"), ("object",)),
}
_STRUCTURE = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
# These decide alone; limits and structure written beside them are passed over.
_DECIDING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "additionalItems")


def parse_schema(text: str) -> Any:
    """The schema's JSON value. Raises ValueError when it is not JSON or nested too deep."""
    try:
        schema = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError as error:
        raise ValueError(f"the JSON schema is not valid JSON: {error}") from None
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return schema
    raise ValueError(_too_deep())


def check_schema(schema: Any, place: str = "$") -> None:
    """Raises ValueError for the first thing in a schema that would not be enforced."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"the JSON schema at {place} must be an object, true or false")
    _check_keywords(schema, place)
    _check_limits(schema, place)
    for where, child in _subschemas(schema, place):
        check_schema(child, where)


def with_lengths_as_patterns(schema: Any) -> Any:
    """Write every bound on a text's length in a schema as a pattern: xgrammar's texts of bounded
    length may hold control characters, which JSON does not allow; its patterns do not."""
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for keyword in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(keyword), dict):
            named = schema[keyword].items()
            changed[keyword] = {name: with_lengths_as_patterns(child) for name, child in named}
    for keyword in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(keyword), list):
            changed[keyword] = [with_lengths_as_patterns(child) for child in schema[keyword]]
    for keyword in _SCHEMAS:
        if keyword in schema:
            changed[keyword] = with_lengths_as_patterns(schema[keyword])
    if "minLength" in schema or "maxLength" in schema:
        least, most = changed.pop("minLength", 0), changed.pop("maxLength", "")
        changed["pattern"] = f"^.{{{least},{most}}}$"
    return changed


def _check_keywords(schema: dict[str, Any], place: str) -> None:
    for keyword in _NOT_ENFORCED:
        if keyword in schema:
            raise _passed_over(keyword, place)
    if schema.get("uniqueItems"):
        raise _passed_over("uniqueItems", place)
    if len(schema.get("allOf") or ()) > 1:
        raise ValueError(
            f"the JSON schema's allOf at {place} has several parts, which are not enforced "
            f"together; write them as one schema"
        )
    reference = schema.get("$ref")
    if reference is not None and not str(reference).startswith("#"):
        raise ValueError(
            f"the JSON schema's $ref at {place} leads elsewhere ({reference!r}); only places in "
            f"the schema itself, such as #/$defs/name, are read"
        )


def _check_limits(schema: dict[str, Any], place: str) -> None:
    """A limit counts when its type stands beside it and nothing else decides."""
    limits = [keyword for keyword in _LIMITS_OF_TYPE if keyword in schema]
    passed_over = [*limits, *(keyword for keyword in _STRUCTURE if keyword in schema)]
    deciding = next((keyword for keyword in _DECIDING if keyword in schema), None)
    if deciding is not None and passed_over:
        raise ValueError(
            f"the JSON schema's {passed_over[0]} at {place} stands beside {deciding} and would not "
            f"be enforced; write it inside, or leave it out"
        )
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    for keyword in limits:
        if not any(kind in _LIMITS_OF_TYPE[keyword] for kind in types):
            wanted = " or ".join(_LIMITS_OF_TYPE[keyword])
            raise ValueError(
                f"the JSON schema's {keyword} at {place} needs type {wanted} beside it"
            )
    lengths = [keyword for keyword in ("minLength", "maxLength") if keyword in schema]
    if lengths and ("pattern" in schema or "format" in schema):
        raise ValueError(
            f"the JSON schema's {lengths[0]} at {place} stands beside a pattern or format and "
            f"would not be enforced; put the length into the pattern, or leave it out"
        )
    for keyword in lengths:
        if type(schema[keyword]) is not int or schema[keyword] < 0:
            raise ValueError(f"the JSON schema's {keyword} at {place} must be a number, 0 or more")
    unnamed = set(_texts(schema.get("required"))) - set(_names(schema))
    if unnamed and "patternProperties" not in schema:
        raise ValueError(
            f"the JSON schema at {place} requires {min(unnamed)!r}, which is not among its "
            f"properties; add it there"
        )


def _subschemas(schema: dict[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """(place, schema) of everything in it that is a schema itself, not a value."""
    for keyword in _SCHEMAS_BY_NAME:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from ((f"{place}.{keyword}.{name}", child) for name, child in named.items())
    for keyword in _LISTS_OF_SCHEMAS:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from ((f"{place}.{keyword}[{i}]", child) for i, child in enumerate(listed))
    for keyword in _SCHEMAS:
        if keyword in schema:
            yield f"{place}.{keyword}", schema[keyword]


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _names(schema: dict[str, Any]) -> Iterator[str]:
    named = schema.get("properties")
    yield from named if isinstance(named, dict) else ()


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _passed_over(keyword: str, place: str) -> ValueError:
    return ValueError(
        f"the JSON schema's {keyword} at {place} is not enforced by this server; leave it out, and "
        f"check the answer for it yourself"
    )


def _too_deep() -> str:
    return f"the JSON schema is nested deeper than {MAX_SCHEMA_DEPTH} levels; flatten it with $defs"
