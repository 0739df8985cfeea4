"""The number of values in a large body, counted before it is parsed.

Parsing delays every other request, and its cost is the values, not the bytes: a long text costs
almost nothing, two million empty lists cost a second, at any place and even in unknown fields.
Prompts as token ids are the one honest use of many values, and numbers are cheap. Called by
body.py; small bodies cannot have many.
"""

from __future__ import annotations

import msgspec

from atom.bounded_input.bounded_json import count_values
from atom.errors import RequestError

MAX_VALUES = 100_000
MAX_NUMBERS = 2**20
SMALL_BODY_BYTES = 2 * MAX_VALUES  # a value and its separator

_Raw = msgspec.Raw | msgspec.UnsetType
_OF_NUMBERS = b"0123456789,[] \t\r\n"


class _NumberLists(msgspec.Struct):
    """The fields that may be long lists of numbers; all others are passed over."""

    prompt: _Raw = msgspec.UNSET
    tokens: _Raw = msgspec.UNSET
    allowed_token_ids: _Raw = msgspec.UNSET


_number_lists = msgspec.json.Decoder(_NumberLists)


def check_value_count(data: bytes | bytearray) -> None:
    """Raise `RequestError` (413, or 400 for invalid JSON) for a body of too many values."""
    if len(data) <= SMALL_BODY_BYTES:
        return
    values = count_values(data, MAX_VALUES)
    if values > MAX_VALUES:
        numbers = _count_numbers(data) if values <= MAX_VALUES + MAX_NUMBERS else 0
        if values - numbers > MAX_VALUES:
            raise RequestError(
                f"the body has about {values} values (fields, items, texts); this server reads "
                f"{MAX_VALUES}, of any length, and {MAX_NUMBERS} token ids besides",
                status=413,
            )


def _count_numbers(data: bytes | bytearray) -> int:
    """Bound how many of the values are token ids."""
    try:
        found = _number_lists.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    lists = (found.prompt, found.tokens, found.allowed_token_ids)
    return sum(
        bytes(value).count(b",") + 1
        for value in lists
        if value is not msgspec.UNSET and not bytes(value).translate(None, _OF_NUMBERS)
    )
