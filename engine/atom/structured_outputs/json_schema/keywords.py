"""Every keyword of JSON schema, draft 4 to 2020-12, and OpenAPI: enforced, annotation, or refused.

KEPT has the required form of each keyword's value; a test holds the documentation's table to these
lists. A key in none of the three is not a keyword: it is ignored, as JSON schema requires and all
validators do. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

TYPES: Mapping[str, tuple[str, ...]] = {
    "null": ("null",),
    "boolean": ("boolean",),
    "integer": ("integer",),
    "number": ("integer", "fraction"),
    "string": ("string",),
    "array": ("array",),
    "object": ("object",),
}

Path = tuple[str | int, ...]


class SchemaError(ValueError):
    """A schema that is not kept; the message has the place, the keyword and the remedy."""


def place(path: Path) -> str:
    """Return a path within the schema as errors write it: $.properties.a[0]."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def refusal(path: Path, keyword: str, reason: str) -> SchemaError:
    return SchemaError(f"the JSON schema's {keyword} at {place(path)} {reason}")


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _are(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _named(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_Check = tuple[Callable[[Any], bool], str]
_SCHEMA: _Check = (_is_schema, "must be a schema: an object, true or false")
_SOME_SCHEMAS: _Check = (
    lambda value: _are(_is_schema)(value) and bool(value),
    "must be a list of one or more schemas",
)
_NAMED_SCHEMAS: _Check = (_named(_is_schema), "must be an object of schemas")
_COUNT: _Check = (_is_count, "must be a whole number, 0 or more")
_NUMBER: _Check = (_is_number, "must be a number")
_NUMBER_OR_FLAG: _Check = (
    lambda value: _is_number(value) or isinstance(value, bool),
    "must be a number (or, in draft 4, true or false)",
)
_FLAG: _Check = (lambda value: isinstance(value, bool), "must be true or false")
_TEXT: _Check = (_is_text, "must be a text")
_TEXTS: _Check = (_are(_is_text), "must be a list of names")
_TYPE: _Check = (
    lambda value: (
        all(isinstance(one, str) and one in TYPES for one in value) and bool(value)
        if isinstance(value, list)
        else isinstance(value, str) and value in TYPES
    ),
    f"must be one or more of {', '.join(TYPES)}",
)
_SCHEMA_OR_SCHEMAS: _Check = (
    lambda value: _is_schema(value) or _are(_is_schema)(value),
    "must be a schema or a list of schemas",
)
_OBJECT: _Check = (lambda value: isinstance(value, dict), "must be an object of schemas")
_DEPENDENCIES: _Check = (
    lambda value: _named(lambda one: _is_schema(one) or _are(_is_text)(one))(value),
    "must be an object of schemas or lists of names",
)

KEPT: Mapping[str, _Check] = {
    "type": _TYPE,
    "nullable": _FLAG,
    "enum": (lambda value: isinstance(value, list), "must be a list of values"),
    "const": (lambda value: True, ""),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _NUMBER_OR_FLAG),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "must be a number above 0"),
    **dict.fromkeys(("minLength", "maxLength"), _COUNT),
    **dict.fromkeys(("pattern", "format"), _TEXT),
    **dict.fromkeys(("minItems", "maxItems", "minContains", "maxContains"), _COUNT),
    "uniqueItems": _FLAG,
    "prefixItems": _SOME_SCHEMAS,
    "items": _SCHEMA_OR_SCHEMAS,
    **dict.fromkeys(("additionalItems", "unevaluatedItems", "contains"), _SCHEMA),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    "required": _TEXTS,
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _NAMED_SCHEMAS),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), _SCHEMA),
    "dependentRequired": (_named(_are(_is_text)), "must be an object of lists of names"),
    "dependencies": _DEPENDENCIES,
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _SOME_SCHEMAS),
    **dict.fromkeys(("not", "if", "then", "else"), _SCHEMA),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema"), _TEXT),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), _TEXT),
    "$recursiveAnchor": _FLAG,
    **dict.fromkeys(("$defs", "definitions"), _OBJECT),
}  # fmt: skip

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "$comment", "readOnly", "writeOnly",
     "deprecated", "contentEncoding", "contentMediaType", "contentSchema", "$vocabulary", "id",
     "discriminator", "xml", "externalDocs")
)  # fmt: skip

REFUSED: Mapping[str, str] = {
    "extends": "write allOf",
    "disallow": "write not",
    "divisibleBy": "write multipleOf",
    "formatMinimum": "write a pattern",
    "formatMaximum": "write a pattern",
    "patternRequired": "write required",
    "instanceof": "write type",
    "typeof": "write type",
    "regexp": "write pattern",
    "$data": "write the value itself",
}

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_ONE = ("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
        "unevaluatedProperties", "propertyNames", "not", "if", "then", "else")  # fmt: skip
_LISTED = ("prefixItems", "items", "allOf", "anyOf", "oneOf")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs",
          "definitions")  # fmt: skip


def check_keywords(schema: dict[str, Any], path: Path) -> None:
    """Raise `SchemaError` for the first keyword that is refused or has an invalid value."""
    for keyword, value in schema.items():
        if keyword in REFUSED:
            raise refusal(path, keyword, f"is not kept by this server; {REFUSED[keyword]} instead")
        if keyword in KEPT:
            fits, reason = KEPT[keyword]
            if not fits(value):
                raise refusal(path, keyword, reason)


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield (path, schema) of everything directly within a schema that is a schema itself."""
    for keyword in _ONE:
        if _is_schema(schema.get(keyword)):
            yield (keyword,), schema[keyword]
    for keyword in _LISTED:
        if isinstance(schema.get(keyword), list):
            yield from (((keyword, at), one) for at, one in enumerate(schema[keyword]))
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            yield from (((keyword, name), one) for name, one in schema[keyword].items())
