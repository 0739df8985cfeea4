"""A prompt that cannot fit the context is refused before it is parsed, and no other is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.entrypoints.http.prompt_fit import check_prompt_fits
from atom.entrypoints.openai import body
from atom.errors import RequestError
from tests.support.server.http_app import AppRig

MOST = 50


def is_refused(**fields: Any) -> bool:
    try:
        check_prompt_fits(json.dumps(fields).encode(), MOST)
    except RequestError:
        return True
    return False


def test_the_refusal_names_the_field_and_the_code_of_openai() -> None:
    with pytest.raises(RequestError, match="51 token ids are more than the 50") as caught:
        check_prompt_fits(json.dumps({"prompt": [1] * 51}).encode(), MOST)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "prompt")


def message(text: str = "a") -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("field", "item", "most"),
    [
        ("messages", message(), MOST),
        ("messages", {}, MOST),
        ("messages", message("[{},{}],"), MOST),
        ("input", message(), 2 * MOST),
        ("input", 7, 2 * MOST),
        ("prompt", 7, MOST),
        ("prompt", -1, MOST),
        ("token_ids", 7, MOST),
    ],
)
def test_one_item_more_than_can_fit_is_refused(field: str, item: Any, most: int) -> None:
    assert not is_refused(**{field: [item] * most})
    assert is_refused(**{field: [item] * (most + 1)})


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "a" * 10_000},
        {"prompt": ["a"] * 1000},
        {"prompt": [[1] * 40] * 100},
        {"input": ["a"] * 1000},
        {"messages": [], "tools": [{}] * 1000},
        {"messages": None, "prompt": {"a": [1] * 1000}},
        {"prompt": [1] * 1000, "truncate_prompt_tokens": 10},
        {"tokens": [1] * 1000},
    ],
)
def test_what_may_fit_is_left_to_the_parser(fields: dict[str, Any]) -> None:
    assert not is_refused(**fields)


@pytest.mark.parametrize(
    "data", [b"", b"x" * 1000, b"[" * 1000, b'{"messages": [' + b"1" * 1000, b'{"a":' * 1000]
)
def test_what_is_no_json_is_left_to_the_parser(data: bytes) -> None:
    check_prompt_fits(data, MOST)


def test_nothing_is_known_before_there_is_a_model() -> None:
    check_prompt_fits(json.dumps({"messages": [message()] * 1000}).encode(), None)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [message()] * 5000}),
        ("/v1/messages", {"messages": [message()] * 5000, "max_tokens": 1}),
        ("/v1/responses", {"input": [message()] * 5000}),
        ("/v1/completions", {"prompt": [1] * 5000}),
        ("/inference/v1/generate", {"token_ids": [1] * 5000}),
    ],
)
async def test_every_door_refuses_it_unread(
    rig: AppRig, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: Any) -> Any:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr(body, "parse_body", parse)
    response = await rig.client.post(path, json={"model": "tiny", **fields})
    assert response.status_code == 400
    assert "5000" in response.text
    assert "shorten the prompt" in response.text
