"""What a request may say of tools, what of it reaches the engine and the template, and refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tool_calls.echo import CHAT, TOOLS, echoing, tool
from tests.support.server.http_app import AppRig

USER = {"role": "user", "content": "warm?"}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice", "should be an object"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "is required"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", "'function'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "wether"}}},
            "tool_choice",
            "no tool 'wether' among tools ('weather', 'time'); name one of them",
        ),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools; send tools"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice", "there are no tools"),
        ({"tools": [*TOOLS, tool("time")]}, "tools", "tools[2].function.name: there is another"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0].function: is required"),
        ({"tools": [tool("")]}, "tools", "tools[0].function.name: must be a text of 1 to 256"),
        ({"tools": [tool("a" * 257)]}, "tools", "1 to 256"),
        ({"tools": [tool("a\nb")]}, "tools", "1 to 256"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type: only tools of type"),
        (
            {"tools": [{"function": {"name": "f", "parameters": "none"}}]},
            "tools",
            "tools[0].function.parameters: must be a JSON schema",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "tool_choice and response_format both ask",
        ),
        (
            {"tools": TOOLS, "tool_choice": NAMED, "guided_choice": ["a"]},
            "tool_choice",
            "tool_choice and guided_choice both ask",
        ),
        # Schemas that would not be kept to, or that are too much, only where they must be kept to.
        (
            {"tools": [*TOOLS, tool("f", type="string")], "tool_choice": "required"},
            "tools",
            "tools[2].function.parameters: arguments are an object",
        ),
        (
            {
                "tools": [tool("f", properties={"a": {"pattern": "(?=b)"}})],
                "tool_choice": "required",
            },
            "tools",
            "tools[0].function.parameters: the JSON schema's pattern at $.properties.a",
        ),
        (
            {"tools": [tool("f", description="x" * 70_000)], "tool_choice": "required"},
            "tools",
            "at most 65536",
        ),
        (
            {
                "tools": [tool(f"f{index}", description="x" * 6_000) for index in range(12)],
                "tool_choice": "required",
            },
            "tools",
            "their schemas together",
        ),
    ],
)
async def test_what_cannot_be_had_is_400_with_the_field(
    rig: AppRig, fields: dict[str, Any], param: str, words: str
) -> None:
    for streams in (False, True):
        response = await rig.post(CHAT, messages=[USER], stream=streams, **fields)
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == param
        assert words in error["message"]
    assert rig.core.added == []


async def test_a_deep_schema_is_refused(rig: AppRig) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(70):
        schema = {"type": "object", "properties": {"a": schema}}
    response = await rig.post(
        CHAT, messages=[USER], tools=[tool("f", **schema)], tool_choice="required"
    )
    assert response.status_code == 400
    assert "tools[0].function.parameters" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [("none", None), ("auto", None), ("required", ["weather", "time"]), (NAMED, ["weather"])],
)
async def test_only_a_forced_call_is_asked_of_the_engine(
    rig: AppRig, choice: Any, names: list[str] | None
) -> None:
    response = await rig.post(CHAT, messages=[USER], tools=TOOLS, tool_choice=choice, max_tokens=3)
    assert response.status_code == 200
    asked = rig.core.added[0].params.structured_outputs
    if names is None:
        assert asked is None
    else:
        assert asked is not None
        assert asked.structural_tag is not None
        text = asked.structural_tag
        assert [name for name in ("weather", "time") if json.dumps(f'"{name}"')[1:-1] in text] == (
            names
        )


async def test_a_strict_tool_is_asked_of_the_engine_without_forcing_a_call(rig: AppRig) -> None:
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    body = {"messages": [USER], "tools": [strict, TOOLS[1]], "max_tokens": 3}
    assert (await rig.post(CHAT, **body)).status_code == 200
    asked = rig.core.added[0].params.structured_outputs
    assert asked is not None
    assert asked.structural_tag is not None
    assert json.loads(asked.structural_tag)["format"]["elements"][1]["type"] == "triggered_tags"
    assert (await rig.post(CHAT, **body, tool_choice="none")).status_code == 200
    assert rig.core.added[1].params.structured_outputs is None


async def test_the_template_gets_the_conversation_as_it_knows_it(tmp_path: Path) -> None:
    """Arguments as an object, reasoning by both names, the tools as they were sent."""
    template = "{{ {'tools': tools, 'messages': messages, 'choice': tool_choice} | tojson }}"
    conversation = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Paris, then",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "20"}]},
        {"role": "assistant", "reasoning": "hm"},
    ]
    sent = [{"x": 1, "type": "function", "function": {"z": 2, "name": "weather", "b": 3}}]
    async with echoing(tmp_path, template=template) as rig:
        answer = await rig.post(
            "/tokenize",
            messages=conversation,
            tools=sent,
            tool_choice=NAMED,
        )
        text = await rig.post("/detokenize", tokens=answer.json()["tokens"])
    seen, _ = json.JSONDecoder().raw_decode(text.json()["prompt"])
    assert json.dumps(seen["tools"]) == json.dumps(sent)
    assert seen["choice"] == NAMED
    call, result, last = seen["messages"][1:]
    assert call["tool_calls"][0]["function"] == {"name": "w", "arguments": {"a": 1}}
    assert (call["content"], call["reasoning"], call["reasoning_content"]) == (
        "", "Paris, then", "Paris, then",
    )  # fmt: skip
    assert result == {"role": "tool", "content": "20", "tool_call_id": "c1"}
    assert (last["content"], last["reasoning_content"]) == ("", "hm")
