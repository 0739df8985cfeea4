"""The keywords of numbers, texts, values and arrays, as the grammar library takes them.

Bounds that only widen a range past the library's are drawn in: answers are a subset. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.json_schema.formats import format_expression
from atom.structured_outputs.json_schema.keywords import Path, refusal
from atom.structured_outputs.regex import RegexError, within

Schema = dict[str, Any]
NO_CONTROLS = r"^[^\x{0}-\x{7}\x{b}\x{e}-\x{1f}]*$"
NEVER: Schema = {"enum": []}
MOST_PARTS = 4096  # items and members that a grammar counts
_MOST_DIFFERENT = 5
_MOST_DIVISOR = 1000
_EXACT = 2**53


def check_number(value: Any, keyword: str, path: Path) -> None:
    """Raise `SchemaError` for a number, anywhere within a value, that is no double."""
    for one in _numbers_in(value):
        exact = abs(one) <= _EXACT if isinstance(one, int) else Decimal(repr(float(one))) == one
        if not exact:
            raise refusal(
                path,
                keyword,
                "has a number that a double does not hold (whole ones past 2^53, or too many "
                "digits), which this server does not keep exactly; use a string",
            )


def _numbers_in(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [one for item in value for one in _numbers_in(item)]
    if isinstance(value, dict):
        return [one for item in value.values() for one in _numbers_in(item)]
    return [value] if isinstance(value, (int, Decimal)) and not isinstance(value, bool) else []


def plain(value: Any) -> Any:
    """Return a value with its decimals as doubles, which `check_number` has found to be equal."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return value


def listed(schema: Schema, path: Path) -> Schema:
    """Return `enum` and `const`."""
    found: Schema = {}
    for keyword in ("enum", "const"):
        if keyword in schema:
            check_number(schema[keyword], keyword, path)
            found[keyword] = plain(schema[keyword])
    return found


def numbers(schema: Schema, path: Path) -> Schema:
    """Return the bounds and the divisor of numbers."""
    found: Schema = {}
    for keyword, sign in (("minimum", -1), ("maximum", 1)):
        for name, said, value in _bounds(schema, keyword, path):
            if value * sign > _EXACT:  # an answer stays within the exact numbers
                name, value = keyword, sign * _EXACT
            check_number(value, said, path)
            stricter = max if sign < 0 else min
            found[name] = plain(stricter(value, found.get(name, value)))
    if "multipleOf" in schema:
        _check_divisor(schema["multipleOf"], path)
        if any(found.get(name, 1) < 0 for name in ("maximum", "exclusiveMaximum")):
            raise refusal(path, "multipleOf", "is kept from 0 on only; raise the maximum")
        found["minimum"] = max(found.get("minimum", 0), 0)  # the library has no negative multiples
        if found.get("exclusiveMinimum", 0) < 0:
            del found["exclusiveMinimum"]
        found["multipleOf"] = plain(schema["multipleOf"])
    return found


def _bounds(schema: Schema, keyword: str, path: Path) -> list[tuple[str, str, Any]]:
    """List (keyword, keyword as written, value) of the bounds on one side."""
    exclusive = "exclusive" + keyword.capitalize()
    bound, limit = schema.get(keyword), schema.get(exclusive)
    if limit is True:
        if bound is None:
            reason = f"is true, as in draft 4, but there is no {keyword} beside it"
            raise refusal(path, exclusive, reason)
        return [(exclusive, keyword, bound)]
    found = [(keyword, keyword, bound), (exclusive, exclusive, limit)]
    return [one for one in found if one[2] is not None and not isinstance(one[2], bool)]


def _check_divisor(divisor: Any, path: Path) -> None:
    whole = isinstance(divisor, int) and divisor <= _MOST_DIVISOR
    halves = isinstance(divisor, Decimal) and divisor * 64 == (divisor * 64).to_integral_value()
    if not (whole or (halves and divisor < _MOST_DIVISOR)):
        raise refusal(
            path,
            "multipleOf",
            f"is kept for whole numbers up to {_MOST_DIVISOR} and sums of halves (0.5, 0.25) only, "
            f"since validators divide doubles; use an integer of a smaller unit",
        )


def texts(schema: Schema, path: Path) -> tuple[Schema, list[Schema]]:
    """Return the keywords of texts, and further patterns that the same text must match."""
    found: Schema = {key: schema[key] for key in ("minLength", "maxLength") if key in schema}
    patterns = []
    if "pattern" in schema:
        patterns.append(pattern(schema["pattern"], "pattern", path))
    expression = format_expression(schema.get("format", ""))
    if expression is not None:
        patterns.append(anchored(expression))
    if patterns:
        found["pattern"] = patterns[0]
    return found, [{"pattern": one} for one in patterns[1:]]


def pattern(text: str, keyword: str, path: Path) -> str:
    """Return an expression as the library takes it. Raises `SchemaError`."""
    try:
        return anchored(within(text))
    except RegexError as error:
        raise refusal(path, keyword, f"is not kept: {error}") from None


def anchored(expression: str) -> str:
    return f"^{expression}$"


def counts(schema: Schema, low: str, high: str, path: Path, *, exact: bool) -> Schema:
    """Return bounds on a number of parts; a high upper one is drawn in, unless it must be exact."""
    found: Schema = {}
    for keyword in (low, high):
        if keyword not in schema:
            continue
        found[keyword] = schema[keyword]
        if keyword == high and not exact:
            found[keyword] = min(schema[keyword], max(MOST_PARTS, schema.get(low, 0)))
        if found[keyword] > MOST_PARTS:
            raise refusal(path, keyword, f"is above {MOST_PARTS}, the most that is kept")
    return found


def array(
    schema: Schema, path: Path, rewrite: Callable[[Path], Any], *, alone: bool, exact: bool
) -> Schema:
    """Return the keywords of arrays. rewrite: rewrites the schema at a path. alone: no other schema
    applies to the same value, so that an array without further items may be narrowed; exact: it
    must not be."""
    found = counts(schema, "minItems", "maxItems", path, exact=exact)
    if isinstance(schema.get("items"), list) and "prefixItems" in schema:
        raise refusal(path, "items", "is a list beside prefixItems; leave one of them out")
    first, rest = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        first, rest = "items", "additionalItems"
    prefix = [rewrite((*path, first, at)) for at in range(len(schema.get(first, ())))]
    whole = bool(prefix) and alone and not exact and found.get("minItems", 0) <= len(prefix)
    if prefix:
        found["prefixItems"] = prefix
    if rest in schema and (prefix or rest == "items"):
        found["items"] = rewrite((*path, rest))
    elif "unevaluatedItems" in schema:
        if not alone:
            raise refusal(
                path, "unevaluatedItems", "is kept beside its own prefix only; write items"
            )
        found["items"] = rewrite((*path, "unevaluatedItems"))
    elif whole:
        found["items"] = False
    if whole:
        most = min(len(prefix), found.get("maxItems", len(prefix)))
        found["minItems"] = max(found.get("minItems", 0), most)
    _contained(schema, path, found)
    return found


def cut_prefix(found: Schema, least: int) -> bool:
    """End an array before the first item of its prefix that has no value; return whether that
    leaves arrays. least: the number of items that the client asks for."""
    prefix = found.get("prefixItems", [])
    whole = next((at for at, one in enumerate(prefix) if one in (False, NEVER)), None)
    if whole is None or whole < least:
        return False
    found |= {"prefixItems": prefix[:whole], "items": False, "minItems": least}
    if not whole:
        del found["prefixItems"]
    return True


def _contained(schema: Schema, path: Path, found: Schema) -> None:
    if "contains" not in schema or schema.get("minContains", 1) == 0:
        return
    if schema["contains"] not in (True, {}) or "maxContains" in schema:
        keyword = next(one for one in ("maxContains", "minContains", "contains") if one in schema)
        raise refusal(
            path, keyword, "is not kept by this server; write items, or leave contains out"
        )
    found["minItems"] = max(found.get("minItems", 0), schema.get("minContains", 1))


def different(schema: Schema, items: Any, path: Path) -> list[Any] | None:
    """Return the arrays that `uniqueItems` leaves; None if it changes nothing. items: the schema of
    the items, if it is the only keyword of the array beside the bounds."""
    if schema.get("uniqueItems") is not True or schema.get("maxItems", 2) <= 1:
        return None
    values = None
    if isinstance(items, dict) and items.keys() <= {"enum", "const", "type"}:
        values = items.get("enum", [items["const"]] if "const" in items else None)
    if values is not None:
        values = list({exact_json.key(value): value for value in values}.values())
        if items.get("type", ["string"]) == ["string"]:
            values = [value for value in values if isinstance(value, str) or "type" not in items]
        else:
            values = None
    if values is None or len(values) > _MOST_DIFFERENT:
        raise refusal(
            path,
            "uniqueItems",
            f"is kept for items of an enum of up to {_MOST_DIFFERENT} values only; leave it out",
        )
    low, high = schema.get("minItems", 0), schema.get("maxItems", len(values))
    if low > len(values):
        raise refusal(path, "minItems", f"asks for {low} different items, of {len(values)} values")
    return [
        list(chosen)
        for count in range(low, min(high, len(values)) + 1)
        for chosen in itertools.permutations(values, count)
    ]
