"""The fields that ask for structured output, each to what the engine is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.server.http_app import AppRig

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"response_format": json_schema(SCHEMA, strict=True)}, {"json": json.dumps(SCHEMA)}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, {"json": '{"type": "null"}'}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"grammar": "root ::= [0-9]"}}, {"grammar": "root ::= [0-9]"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"json_object": True, "disable_any_whitespace": True},
        ),
        ({"guided_json": SCHEMA}, {"json": json.dumps(SCHEMA)}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_grammar": "root ::= [0-9]"}, {"grammar": "root ::= [0-9]"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_choice": ["a"], "response_format": {"type": "text"}}, {"choice": ["a"]}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_field_becomes_what_the_engine_is_asked_for(
    rig: AppRig, path: str, fields: dict[str, Any], asked: dict[str, Any]
) -> None:
    prompt = {"prompt": "hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}  # type: ignore[dict-item]
    response = await rig.post(path, max_tokens=3, **prompt, **fields)
    assert response.status_code == 200, response.text
    found = rig.core.added[0].params.structured_outputs
    assert found is not None
    names = (*asked, "json", "json_object", "regex", "grammar", "choice")
    assert {name: getattr(found, name) for name in names} == {
        name: asked.get(name, False if name == "json_object" else None) for name in names
    }


@pytest.mark.parametrize("response_format", [None, {"type": "text"}])
async def test_plain_text_asks_for_nothing(rig: AppRig, response_format: Any) -> None:
    response = await rig.chat(response_format=response_format, max_tokens=3)
    assert response.status_code == 200
    assert rig.core.added[0].params.structured_outputs is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "is required"),
        ({"response_format": json_schema({"type": "x"})}, "response_format", "type at $"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "regex and",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "needs format"),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs",
            "send structured_outputs.disable_any_whitespace",
        ),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_regex": "a" * 5000}, "guided_regex", "at most 4096"),
        ({"guided_choice": []}, "guided_choice", "1 to 1024"),
        ({"guided_choice": ["a"] * 2000}, "guided_choice", "at most 1024"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "send one of them"),
    ],
)
async def test_what_cannot_be_had_is_400_with_the_field(
    rig: AppRig, fields: dict[str, Any], param: str, words: str
) -> None:
    for streams in (False, True):
        response = await rig.chat(stream=streams, **fields)
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == param
        assert words in error["message"]
    assert rig.core.added == []
