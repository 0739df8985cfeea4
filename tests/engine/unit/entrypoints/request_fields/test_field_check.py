"""Bodies against the table: each refused field by name, each harmless one taken, typos refused,
unknown names told; at every depth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.entrypoints.openai.body import parse_body
from atom.entrypoints.request_fields.field_check import MOST_UNKNOWN, check_fields, like
from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict
from atom.errors import RequestError
from tests.support.server.request_fields import KINDS, TABLE

REFUSED = [row for row in TABLE if row.verdict is Verdict.REFUSED]
PASSED = [row for row in TABLE if row.verdict is not Verdict.REFUSED]


def body_with(path: str, value: Any) -> dict[str, Any]:
    """The least body that has this value at this path."""
    first, _, rest = path.partition(".")
    inner = body_with(rest, value) if rest else value
    name = first.removesuffix("[]")
    return {name: [inner] if first.endswith("[]") else inner}


def check(path: str, value: Any, endpoint: Endpoint) -> list[str]:
    return check_fields(json.dumps(body_with(path, value)).encode(), KINDS[endpoint])


ASKED = {"role": "user", "content": "a"}
NEEDED: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "a"}]},
    Endpoint.COMPLETIONS: {"prompt": "a"},
    Endpoint.TOKENIZE: {"prompt": "a"},
    Endpoint.DETOKENIZE: {"tokens": [1]},
    Endpoint.RESPONSES: {"input": "a"},
    Endpoint.RESPONSES_INPUT_TOKENS: {"input": "a"},
    Endpoint.GENERATE: {"token_ids": [1]},
    Endpoint.EMBEDDINGS: {"input": "a"},
    Endpoint.SCORE: {"text_1": "a", "text_2": "b"},
    Endpoint.RERANK: {"query": "a", "documents": ["b"]},
    Endpoint.MESSAGES: {"model": "a", "max_tokens": 1, "messages": [ASKED]},
    Endpoint.COUNT_TOKENS: {"model": "a", "messages": [ASKED]},
    Endpoint.OLLAMA_CHAT: {"model": "a", "messages": [ASKED]},
    Endpoint.OLLAMA_GENERATE: {"model": "a", "prompt": "a"},
    Endpoint.OLLAMA_EMBED: {"model": "a", "input": "a"},
    Endpoint.OLLAMA_EMBEDDINGS: {"model": "a", "prompt": "a"},
}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.path)
def test_a_request_with_a_refused_field_gets_its_remedy(row: FieldRow) -> None:
    """Whatever else is wrong with the shape of what holds the field."""
    for endpoint in row.endpoints:
        for asked in ({"some": "thing"}, "x" * 70):
            body = NEEDED[endpoint] | body_with(row.path, asked)
            with pytest.raises(RequestError) as refusal:
                parse_body(json.dumps(body).encode(), KINDS[endpoint])
            assert row.note in str(refusal.value)


def shown(path: str) -> str:
    return path.replace("[]", "[0]")


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.path)
def test_a_refused_field_is_named_with_its_remedy_unless_it_asks_for_nothing(row: FieldRow) -> None:
    for endpoint in row.endpoints:
        for asked in ("x" * 65, {"some": "thing"}, 7.5):
            with pytest.raises(RequestError) as refusal:
                check(row.path, asked, endpoint)
            message = str(refusal.value)
            assert message.startswith(f"{shown(row.path)} is not supported by this server: ")
            assert row.note in message
            assert refusal.value.param == row.path.partition(".")[0].removesuffix("[]")
            assert refusal.value.code == "unsupported_parameter"
        for nothing in (None, *row.nothing):
            assert check(row.path, nothing, endpoint) == []


@pytest.mark.parametrize("row", PASSED, ids=lambda row: row.path)
def test_a_field_that_is_honoured_or_harmless_passes(row: FieldRow) -> None:
    for endpoint in row.endpoints:
        for value in ("text", 1, [], None):
            assert check(row.path, value, endpoint) == []
        if row.opaque or row.verdict is Verdict.HARMLESS:
            assert check(row.path, {"max_token": 1, "anything": {"best_of": 2}}, endpoint) == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("temprature", "temperature"), ("max_token", "max_tokens"), ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"), ("top_P", "top_p"), ("logprob", "logprobs"),
        ("stops", "stop"), ("frequency_penatly", "frequency_penalty"),
        ("stream_options.include_usages", "include_usage"),
        ("response_format.json_schemas", "json_schema"),
        ("response_format.json_schema.shema", "schema"),
        ("structured_outputs.jsons", "json"),
        ("messages[].contents", "content"), ("messages[].content[].texts", "text"),
        ("messages[].tool_calls[].functions", "function"),
        ("tool_choice.funtion", "function"), ("skip_special_token", "skip_special_tokens"),
    ],
)  # fmt: skip
def test_a_misspelled_field_is_refused_with_the_one_that_was_meant(path: str, meant: str) -> None:
    with pytest.raises(RequestError, match=f"did you mean {meant}") as refusal:
        check(path, 1, Endpoint.CHAT)
    assert str(refusal.value).startswith(f"{shown(path)} is no field")
    assert refusal.value.code == "unknown_parameter"


def test_every_slip_in_a_long_name_is_found() -> None:
    known = tuple(
        row.path for row in TABLE if "." not in row.path and Endpoint.CHAT in row.endpoints
    )
    for name in (name for name in known if len(name) >= 8):
        for index in range(len(name)):
            slips = {
                name[:index] + name[index + 1 :],
                name[:index] + "q" + name[index:],
                name[:index] + "q" + name[index + 1 :],
                name[:index] + name[index + 1 : index + 2] + name[index] + name[index + 2 :],
            }
            for slip in slips - set(known):
                assert like(slip, known) is not None, slip


@pytest.mark.parametrize(
    "path",
    ["chat_id", "messages[].ui_state", "response_format.note", "messages[].content[].ui_state"],
)
def test_an_unknown_field_is_told_by_its_path(path: str) -> None:
    assert check(path, {"temprature": 1}, Endpoint.CHAT) == [shown(path)]


def test_of_very_many_unknown_fields_the_first_are_told() -> None:
    body = {f"of_mine_{number:09}": 1 for number in range(20_000)}
    found = check_fields(json.dumps(body).encode(), KINDS[Endpoint.CHAT])
    assert found == list(body)[:MOST_UNKNOWN]


@pytest.mark.parametrize("data", [b'{"chat_id": NaN}', b'{"metadata": {"a": NaN}}', b"[1]", b"{"])
def test_what_is_no_json_object_is_said(data: bytes) -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        check_fields(data, KINDS[Endpoint.CHAT])
