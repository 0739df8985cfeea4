"""JSON that others wrote costs what its bounds say, and is Python's own value within them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.bounded_input.bounded_json import (
    SETTINGS,
    BoundedJsonError,
    JsonBounds,
    parse_json,
)

TEXTS = st.text(alphabet='\\",[]{}:a字', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
DEEP = 500_000


def depth_of(value: Any) -> int:
    if isinstance(value, list | dict):
        inside = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, inside), default=0)
    return 0


@given(value=VALUES, depth=st.integers(0, 5), ascii_only=st.booleans())
def test_depth_is_that_of_the_value_whatever_its_texts_hold(
    value: Any, depth: int, ascii_only: bool
) -> None:
    bounds = JsonBounds(most_bytes=1 << 20, most_values=1 << 20, most_depth=depth)
    text = json.dumps(value, ensure_ascii=ascii_only)
    if depth_of(value) <= depth:
        assert parse_json(text, bounds) == value
    else:
        with pytest.raises(BoundedJsonError, match=f"deeper than {depth}"):
            parse_json(text, bounds)


TOO_MUCH = {
    "lists in lists": "[" * DEEP + "]" * DEEP,
    "lists that never close": "[" * DEEP,
    "objects in objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "lists behind a text of escapes": '["\\\\\\"[",' + "[" * DEEP,
    "many lists": "[" + "[]," * DEEP * 4 + "[]]",
    "many numbers": "[" + "1," * DEEP * 4 + "1]",
    "many texts": "[" + '"",' * DEEP * 4 + '""]',
    "a number of many digits": "[" + "1" * DEEP + "]",
    "a text beyond all configurations": '"' + "a" * (SETTINGS.most_bytes + 1) + '"',
    "bytes that are no UTF-8": b'{"a": "\xff"}',
    "nothing": "",
    "half an object": '{"a": 1',
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_every_refusal_is_one_short_typed_sentence(kind: str) -> None:
    with pytest.raises(BoundedJsonError) as refusal:
        parse_json(TOO_MUCH[kind], SETTINGS)
    assert 0 < len(str(refusal.value)) < 200
    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_json_lacks_are_read_unless_only_finite_ones_are_wanted(number: str) -> None:
    assert not math.isfinite(parse_json(f'{{"a": {number}}}', SETTINGS)["a"])
    with pytest.raises(BoundedJsonError, match="no JSON number"):
        parse_json(f'{{"a": {number}}}', SETTINGS, finite=True)


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}', SETTINGS) == {"a": 1}
