"""Finds rewritten schemas that lead nowhere: references in a circle with nothing in between, and
values that would have to contain themselves. The grammar library would begin an answer that never
ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PREFIX = "#/$defs/"
_LISTS = ("allOf", "anyOf", "oneOf")


def circular(definitions: Mapping[str, Any]) -> str | None:
    """Return the name of a definition that applies itself to the same value, or None."""
    done: set[str] = set()
    for start in definitions:
        trail: dict[str, Iterator[str]] = {start: _applied(definitions[start])}
        while trail:
            name, following = next(reversed(trail.items()))
            target = next(following, None)
            if target in trail:
                return target
            if target is None:
                done.add(name)
                del trail[name]
            elif target not in done:
                trail[target] = _applied(definitions[target])
    return None


def _applied(schema: Any) -> Iterator[str]:
    """Yield the definitions that a schema applies to the same value."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield schema["$ref"].removeprefix(_PREFIX)
    for keyword in _LISTS:
        for one in schema.get(keyword, ()):
            yield from _applied(one)


def endless(definitions: Mapping[str, Any]) -> list[str]:
    """Return the definitions that no finite value fits, for their references alone."""
    fitting: set[str] = set()
    while True:
        more = {name for name, schema in definitions.items() if _fits(schema, fitting)}
        if more == fitting:
            return [name for name in definitions if name not in fitting]
        fitting = more


def _fits(schema: Any, fitting: set[str]) -> bool:
    """Return whether some value fits, as far as references decide, if the definitions in `fitting`
    have one."""
    if schema is False:
        return False
    if "$ref" in schema and schema["$ref"].removeprefix(_PREFIX) not in fitting:
        return False
    if not all(_fits(one, fitting) for one in schema.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(_fits(one, fitting) for one in schema[keyword]):
            return False
    kinds = schema.get("type")
    if kinds == ["object"]:
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
        needed = (properties.get(name, rest) for name in schema.get("required", ()))
        return all(_fits(one, fitting) for one in needed)
    if kinds == ["array"] and schema.get("minItems", 0) > 0:
        prefix = schema.get("prefixItems", [])[: schema["minItems"]]
        rest = [schema.get("items", {})] if schema["minItems"] > len(prefix) else []
        return all(_fits(one, fitting) for one in (*prefix, *rest))
    return True
