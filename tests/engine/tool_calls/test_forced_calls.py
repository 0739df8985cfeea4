"""Forced calls from a real engine with random weights: whatever it says is a valid call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from atom.config import EngineOptions, build_config
from tests.engine.tool_calls.echo import telling, tool
from tests.support.models.byte_tokenizer import CHAT_TEMPLATE
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

MODEL = "tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "hello grüße"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "note": {"$ref": "#/$defs/note"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"note": {"type": "string", "maxLength": 5}},
}
SCHEMAS = {
    'get "weather"': WEATHER,
    "time": {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 3}}},
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: list[Any] = [
    tool('get "weather"', **WEATHER),
    tool("time", **SCHEMAS["time"]),
    {"type": "function", "function": {"name": "nothing"}},
]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=["hermes", "llama3_json", "unknown"]
)
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpRig]:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")
    # A template of the family, with the answer after an empty thought where it is asked for.
    thought = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    (folder / "chat_template.jinja").write_text(telling(request.param) + CHAT_TEMPLATE + thought)
    options = {"served_model_name": MODEL, "device": "cpu", "num_kv_blocks": 400}
    config = build_config(EngineOptions.of(model=str(folder), **options))  # type: ignore[arg-type]
    async with serve_model(config) as rig:
        yield rig
        await rig.assert_well()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(rig: HttpRig) -> AsyncIterator[AsyncOpenAI]:
    async with rig.openai_client() as client:
        yield client


async def ask(client: AsyncOpenAI, **fields: Any) -> Any:
    settings: dict[str, Any] = {
        "model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 300, "temperature": 1.0,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }  # fmt: skip
    return await client.chat.completions.create(**{**settings, **fields})


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("name", list(SCHEMAS))
async def test_a_tool_by_name_is_called_with_arguments_of_its_schema(
    client: AsyncOpenAI, name: str
) -> None:
    choice = {"type": "function", "function": {"name": name}}
    answer = await ask(client, tool_choice=choice, n=3, seed=5)
    for item in answer.choices:
        assert item.finish_reason == "stop"  # OpenAI's, where the client named the tool
        assert item.message.content is None
        (call,) = item.message.tool_calls
        assert call.function.name == name
        check(name, call.function.arguments)


@pytest.mark.parametrize("seed", range(3))
async def test_some_tool_is_called_where_one_is_required(client: AsyncOpenAI, seed: int) -> None:
    answer = await ask(
        client, tool_choice="required", parallel_tool_calls=False, n=4, seed=10 * seed
    )
    for item in answer.choices:
        assert item.finish_reason == "tool_calls"
        (call,) = item.message.tool_calls
        check(call.function.name, call.function.arguments)


def allowing(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_only_allowed_tools_are_called_and_shown(client: AsyncOpenAI, rig: HttpRig) -> None:
    answer = await ask(client, tool_choice=allowing("required", "time", "nothing"), n=6, seed=2)
    for item in answer.choices:
        assert item.finish_reason in ("tool_calls", "length")
        assert {call.function.name for call in item.message.tool_calls} <= {"time", "nothing"}
    body = {"messages": MESSAGES, "tools": TOOLS}

    async def prompt_of(**fields: Any) -> Any:
        return (await rig.post("/tokenize", **{**body, **fields})).json()["tokens"]

    some = await prompt_of(tool_choice=allowing("auto", "time"))
    assert some == await prompt_of(tools=TOOLS[1:2])
    with pytest.raises(BadRequestError, match="no tool 'other' among tools"):
        await ask(client, tool_choice=allowing("auto", "other"))
    with pytest.raises(BadRequestError, match=r"tool_choice\.allowed_tools\.mode"):
        await ask(client, tool_choice=allowing("sometimes", "time"))


async def test_several_calls_may_follow_each_other(client: AsyncOpenAI) -> None:
    """min_tokens keeps the model from ending after the first; the last may be cut."""
    body = {"min_tokens": 200, "chat_template_kwargs": {"enable_thinking": False}}
    answer = await ask(client, tool_choice="required", n=2, seed=1, extra_body=body)
    counts = []
    for item in answer.choices:
        calls = item.message.tool_calls
        counts.append(len(calls))
        whole = calls if item.finish_reason == "tool_calls" else calls[:-1]
        for call in whole:
            check(call.function.name, call.function.arguments)
    assert min(counts) > 1


async def test_a_forced_call_streams_its_arguments(client: AsyncOpenAI) -> None:
    """How many pieces is the reader's luck; test_wire.py shows that they come as it is written."""
    choice = {"type": "function", "function": {"name": 'get "weather"'}}
    fields: dict[str, Any] = {"tool_choice": choice, "temperature": 0}
    whole = (await ask(client, **fields)).choices[0].message.tool_calls[0].function
    stream = await ask(client, **fields, stream=True, stream_options={"include_usage": True})
    pieces, reasons, usage = [], [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        for item in chunk.choices:
            assert not item.delta.content
            reasons += [item.finish_reason] if item.finish_reason else []
            pieces += [call.function for call in item.delta.tool_calls or ()]
    assert [piece.name for piece in pieces if piece.name] == ['get "weather"']
    assert "".join(piece.arguments for piece in pieces) == whole.arguments
    assert reasons == ["stop"]
    assert usage is not None
    assert usage.completion_tokens > 3


async def test_a_structure_is_kept_to_where_a_model_may_reason_first(client: AsyncOpenAI) -> None:
    """Here it is kept from reasoning, which with random weights would hardly end."""
    schema = {"name": "weather", "schema": WEATHER}
    answer = await ask(
        client, n=3, seed=2, tools=None, extra_body={"bad_words": ["<"]},
        response_format={"type": "json_schema", "json_schema": schema},
    )  # fmt: skip
    for item in answer.choices:
        assert item.finish_reason == "stop"
        assert item.message.tool_calls is None
        jsonschema.validate(json.loads(item.message.content), WEATHER)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_does_not_compile_is_400_also_for_a_stream(
    client: AsyncOpenAI, stream: bool
) -> None:
    tools = [tool("f", type="object", properties={"a": {"type": "string", "pattern": "("}})]
    with pytest.raises(BadRequestError) as caught:
        await ask(client, tools=tools, tool_choice="required", stream=stream)
    assert caught.value.param == "tools"
