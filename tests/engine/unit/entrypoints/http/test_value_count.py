"""A body of more values than anybody needs is refused before they are made, a long text is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.bounded_input.bounded_json import count_values
from atom.entrypoints.http.value_count import (
    MAX_NUMBERS,
    MAX_VALUES,
    check_value_count,
)
from atom.errors import RequestError
from tests.support.server.http_app import AppRig

BOUND = 10
TEXTS = st.text(alphabet='\\",[]{}:a字', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=15,
)


def signs(value: Any) -> int:
    """Of a value's JSON: texts, opening brackets and commas between items."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(signs, value))
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + len(value) + sum(map(signs, value.values()))
    return 0


@given(value=VALUES, ascii_only=st.booleans())
def test_only_what_stands_outside_of_texts_counts(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert (count_values(data, BOUND) > BOUND) == (signs(value) > BOUND)


MANY = MAX_VALUES + 1
TOO_MANY = {
    "unknown fields": {"prompt": "a", **{f"field{number}": 1 for number in range(MANY)}},
    "anything in a tool": {"messages": [], "tools": [{"a": [[]] * MANY}]},
    "a wrong type": {"prompt": "a", "model": [[]] * MANY},
    "messages": {"messages": [{}] * MANY},
    "texts": {"prompt": ["a"] * (2 * MANY)},
    "numbers elsewhere": {"prompt": "a", "user": [1] * MANY},
    "numbers beyond all contexts": {"prompt": [1] * (MAX_NUMBERS + MANY)},
    "empty prompts": {"prompt": [[]] * MANY},
}


@pytest.mark.parametrize("kind", TOO_MANY)
def test_too_many_values_are_refused_wherever_they_stand(kind: str) -> None:
    with pytest.raises(RequestError, match="values") as refused:
        check_value_count(json.dumps(TOO_MANY[kind]).encode())
    assert refused.value.status == 413


FINE = {
    "a long text": {"prompt": '{"a": ["\\"", [1, 2]]},\n' * MANY},
    "a backslash before the end of a text": {"prompt": ["\\", ",[{" * MANY]},
    "token ids": {"prompt": [1] * MAX_NUMBERS},
    "many prompts of token ids": {"prompt": [[12345] * 10_000] * 100},
    "allowed tokens": {"prompt": "a", "allowed_token_ids": list(range(2 * MANY))},
}


@pytest.mark.parametrize("kind", FINE)
def test_long_texts_and_token_ids_are_read(kind: str) -> None:
    check_value_count(json.dumps(FINE[kind]).encode())


def test_what_is_no_json_is_said_to_be_none() -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        check_value_count(b'{"prompt": [NaN' + b",1" * MANY + b"]}")


async def test_the_server_refuses_before_it_parses_and_goes_on(rig: AppRig) -> None:
    response = await rig.post("/v1/completions", **TOO_MANY["a wrong type"])
    assert response.status_code == 413
    response = await rig.post("/v1/completions", **FINE["token ids"])
    assert response.json()["error"]["code"] == "context_length_exceeded"
    response = await rig.post("/tokenize", prompt="a" * (3 * MANY))
    assert response.json()["count"] == 3 * MANY
    assert rig.core.added == []
    assert (await rig.chat(max_tokens=1)).status_code == 200
