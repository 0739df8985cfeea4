"""The case of one schema by itself, without the schemas that it refers to or combines.

Reads spellings of every draft: boolean exclusiveMinimum (4), lists of items with additionalItems (4
to 2019-09), prefixItems (2020-12), OpenAPI's nullable. Pure; used by Expansion.
"""

from __future__ import annotations

from typing import Any

from atom.structured_outputs.json_schema.cases import (
    ALL_TYPES,
    ANYTHING,
    NOTHING,
    Case,
    Conjunction,
    Items,
    ItemsLayer,
    Members,
    MembersLayer,
    Numbers,
    Place,
    Reading,
    Texts,
    tidy,
    unique_values,
)
from atom.structured_outputs.json_schema.keywords import TYPES, Path, refusal
from atom.structured_outputs.regex.search import searched
from atom.structured_outputs.regex.syntax import RegexError

Schema = dict[str, Any]


def own_case(schema: Schema, path: Path) -> Case | None:
    """Read the schema's own keywords; None when it is plain that no value is left. Raises
    `SchemaError`."""
    check_patterns(schema, path)
    values = None
    if "enum" in schema:
        values = unique_values(schema["enum"])
    if "const" in schema:
        const = (schema["const"],)
        values = const if values is None else tuple(_in_both(values, const))
    return tidy(
        Case(
            types=_types(schema),
            values=values,
            numbers=_numbers(schema, path),
            texts=_texts(schema),
            items=_items(schema, path),
            members=_members(schema, path),
        )
    )


def _in_both(values: tuple[Any, ...], const: tuple[Any, ...]) -> tuple[Any, ...]:
    return const if len(unique_values((*values, *const))) == len(values) else ()


def _types(schema: Schema) -> frozenset[str]:
    if "type" not in schema:
        return ALL_TYPES
    said = schema["type"]
    names = list(said) if isinstance(said, list) else [said]
    if schema.get("nullable") is True:
        names.append("null")
    return frozenset(kind for name in names for kind in TYPES[name])


def _numbers(schema: Schema, path: Path) -> Numbers:
    low, low_open = _bound(schema, "minimum", "exclusiveMinimum", path)
    high, high_open = _bound(schema, "maximum", "exclusiveMaximum", path)
    divisors = (schema["multipleOf"],) if "multipleOf" in schema else ()
    return Numbers(low, low_open, high, high_open, divisors)


def _bound(schema: Schema, closed: str, opened: str, path: Path) -> tuple[Any, bool]:
    """Read (bound, whether it is left out itself) of the stricter of two keywords."""
    bound, limit = schema.get(closed), schema.get(opened)
    if limit is True and bound is None:
        raise refusal(path, opened, f"is true, as in draft 4, but there is no {closed} beside it")
    if limit is None or isinstance(limit, bool):
        return bound, bool(limit)
    if bound is None or (limit >= bound if closed == "minimum" else limit <= bound):
        return limit, True
    return bound, False


def _texts(schema: Schema) -> Texts:
    return Texts(
        schema.get("minLength", 0),
        schema.get("maxLength"),
        ((schema["pattern"], Reading.MATCHES),) if "pattern" in schema else (),
        (schema["format"],) if "format" in schema else (),
    )


def check_patterns(schema: Schema, path: Path) -> None:
    """Raise `SchemaError` for an expression that is not supported."""
    patterns = [("pattern", schema["pattern"])] if "pattern" in schema else []
    patterns += [("patternProperties", one) for one in schema.get("patternProperties", ())]
    for keyword, pattern in patterns:
        try:
            searched(pattern)
        except RegexError as error:
            raise refusal(path, keyword, f"is not kept: {error}") from None


def _items(schema: Schema, path: Path) -> Items:
    prefix_keyword, rest_keyword = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        if "prefixItems" in schema:
            raise refusal(path, "items", "is a list beside prefixItems; leave one of them out")
        prefix_keyword, rest_keyword = "items", "additionalItems"
    prefix = tuple(
        (Place((*path, prefix_keyword, at)),) for at in range(len(schema.get(prefix_keyword, ())))
    )
    given = rest_keyword in schema
    rest: Conjunction = (Place((*path, rest_keyword)),) if given else ANYTHING
    contains: tuple[Conjunction, ...] = ()
    if "contains" in schema and schema.get("minContains", 1) != 0:
        contains = ((Place((*path, "contains")),),)
        if schema.get("minContains", 1) > 1:
            raise refusal(path, "minContains", "above 1 is not kept by this server; leave it out")
    if "contains" in schema and "maxContains" in schema:
        raise refusal(path, "maxContains", "is not kept by this server; leave it out")
    return Items(
        (ItemsLayer(prefix, rest, given),) if prefix or given else (),
        schema.get("minItems", 0),
        schema.get("maxItems"),
        schema.get("uniqueItems", False),
        contains,
    )


def _members(schema: Schema, path: Path) -> Members:
    def named(keyword: str) -> tuple[tuple[str, Conjunction], ...]:
        names = schema.get(keyword, {})
        return tuple((name, (Place((*path, keyword, name)),)) for name in names)

    properties, patterns = named("properties"), named("patternProperties")
    given = "additionalProperties" in schema
    rest: Conjunction = (Place((*path, "additionalProperties")),) if given else ANYTHING
    layers: tuple[MembersLayer, ...] = ()
    if "properties" in schema or patterns or given:
        layers = (MembersLayer(properties, patterns, rest, given),)
    return Members(
        layers,
        tuple(dict.fromkeys(schema.get("required", ()))),
        schema.get("minProperties", 0),
        schema.get("maxProperties"),
        (Place((*path, "propertyNames")),) if "propertyNames" in schema else ANYTHING,
    )


def without(name: str) -> Case:
    """Return the case of objects that lack a member, and of all other values."""
    return Case(members=Members((MembersLayer(((name, NOTHING),), given=None),)))


def having(*names: str) -> Case:
    """Return the case of objects with these members, and of all values that are not objects."""
    return Case(members=Members(required=names))
