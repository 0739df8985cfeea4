"""JSON values read exactly, compared as JSON schema compares them, and written again.

Integers have any size and decimals all their digits (Decimal); 1 and 1.0 are equal, true and 1 are
not. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import Any

MAX_DEPTH = 64
MAX_DIGITS = 400
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = 10**15  # whole decimals below it are written as integers


def read(text: str) -> Any:
    """Parse the text. Raises ValueError if it is not JSON, is nested too deep, or has a number or
    text that no answer can have."""
    try:
        value = json.loads(
            text, parse_int=_integer, parse_float=_decimal, parse_constant=_no_number
        )
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the JSON schema is not valid JSON: {error}") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return value
    raise ValueError(_too_deep())


def _too_deep() -> str:
    return f"the JSON schema is nested deeper than {MAX_DEPTH} levels; flatten it with $defs"


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the JSON schema has a number of more than {MAX_DIGITS} digits")
    return int(text)


def _decimal(text: str) -> int | Decimal:
    number = Decimal(text) if len(text) <= MAX_DIGITS else Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError(
            f"the JSON schema has a number of more than {MAX_DIGITS} digits: {text[:40]}"
        )
    whole = number == number.to_integral_value() and abs(number) < _PLAIN
    return int(number) if whole else number


def _no_number(text: str) -> None:
    raise ValueError(f"the JSON schema is not valid JSON: {text} is no number there")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, str) and _SURROGATE.search(value):
        raise ValueError(
            "the JSON schema has half of a surrogate pair, which is no character: write both halves"
        )


def key(value: Any) -> Hashable:
    """Return a key that is equal for values that JSON schema considers equal, and for no others."""
    if isinstance(value, bool) or value is None:
        return (type(value), value)
    if isinstance(value, list):
        return ("array", *map(key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, key(member)) for name, member in value.items()))
    return ("text" if isinstance(value, str) else "number", value)


def kind(value: Any) -> str:
    """Return the JSON type of a value; whole numbers are integers, others fractions."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, Decimal)):
        whole = isinstance(value, int) or value == value.to_integral_value()
        return "integer" if whole else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def write(value: Any) -> str:
    """Write the value as JSON text, on one line, spaced as by `json.dumps`."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, dict):
        members = (f"{write(name)}: {write(member)}" for name, member in value.items())
        return "{" + ", ".join(members) + "}"
    return json.dumps(value, ensure_ascii=False)
