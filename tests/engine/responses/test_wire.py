"""/v1/responses over HTTP: items in and out, streamed and whole, tools of every type, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from atom.entrypoints.responses.tools import chat_tools
from tests.engine.answer_parsing.written import WRITERS, plain
from tests.engine.responses.lifecycle import checked_response, events_in, without_ids
from tests.engine.tool_calls.echo import END, echoing
from tests.support.server.http_app import AppRig
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted

PATH = "/v1/responses"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\n\\"b\\""}}\n</tool_call>'
READ = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nThe city?\n</think>\n\n"
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [
    WEATHER,
    {"type": "custom", "name": "patch", "description": "Edits."},
    {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
    {"type": "web_search", "external_web_access": True},
]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


async def whole(rig: AppRig, answer: str, **fields: Any) -> dict[str, Any]:
    body = {"input": answer + END, "stop": END, "tools": TOOLS, **fields}
    response = await rig.post(PATH, **body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def streamed(rig: AppRig, answer: str, **fields: Any) -> dict[str, Any]:
    body = {"input": answer + END, "stop": END, "tools": TOOLS, "stream": True, **fields}
    response = await rig.post(PATH, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return checked_response(events_in(response.text))


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        ("Hi.", [("message", "Hi.")]),
        (
            f"{THOUGHT}I look.\n{CALL}\n{PATCH}{READ}",
            [
                ("reasoning", "The city?"),
                ("message", "I look."),
                ("function_call", '{"city": "Paris"}'),
                ("custom_tool_call", 'a\n"b"'),
                ("function_call", "{}"),
            ],
        ),
        ("", [("message", "")]),
    ],
)
async def test_an_answer_is_the_same_whole_and_streamed(
    rig: AppRig, answer: str, items: list[tuple[str, str]]
) -> None:
    found = await whole(rig, answer)
    assert without_ids(await streamed(rig, answer)) == without_ids(found)
    assert [(item["type"], text_of(item)) for item in found["output"]] == items
    assert found["status"] == "completed"
    usage = found["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    assert bool(usage["output_tokens_details"]["reasoning_tokens"]) == (THOUGHT in answer)


def text_of(item: dict[str, Any]) -> str:
    text = item.get("arguments", item.get("input"))
    return str(item["content"][0]["text"] if text is None else text)


async def test_a_call_names_the_tool_as_it_was_sent(rig: AppRig) -> None:
    custom, read = (await whole(rig, PATCH + READ))["output"]
    assert (custom["name"], "namespace" in custom) == ("patch", False)
    assert (read["name"], read["namespace"]) == ("read", "files")


def test_tools_of_one_name_are_told_apart_by_their_namespaces() -> None:
    run = {"type": "function", "name": "run"}
    spaces = [{"type": "namespace", "name": name, "tools": [run]} for name in ("a", "b")]
    tools = chat_tools([run, *spaces])
    assert list(tools.by_name) == ["run", "a__run", "b__run"]
    assert tools.called("b__run").namespace == "b"
    assert tools.function_named("run", "a") == "a__run"
    assert tools.function_named("run") == "run"
    assert chat_tools(spaces).function_named("run") is None  # which of them?


async def test_tools_may_come_as_an_item_of_the_input(rig: AppRig) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": TOOLS[1:3]}
    said = {"role": "user", "content": PATCH + READ + END}
    response = (await rig.post(PATH, input=[item, said], stop=END)).json()
    kinds = [(each["type"], each.get("namespace")) for each in response["output"]]
    assert kinds == [("custom_tool_call", None), ("function_call", "files")]


async def test_an_answer_that_is_cut_is_incomplete_and_says_where(rig: AppRig) -> None:
    for ask in (whole, streamed):
        response = await ask(rig, "A long answer.", max_output_tokens=4)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        (item,) = response["output"]
        assert item["status"] == "incomplete"
        assert 0 < len(text_of(item)) < len("A long answer.")
        assert "A long answer.".startswith(text_of(item))


async def test_tools_that_cannot_run_here_are_passed_over_and_told(rig: AppRig) -> None:
    response = await rig.post(PATH, input="a", tools=TOOLS, max_output_tokens=1, misc=1)
    assert response.headers["x-ignored-fields"] == "misc, tools[3]"
    assert response.json()["tools"][3] == TOOLS[3]


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        (
            {"tool_choice": {"type": "web_search"}},
            "forces a tool of type 'web_search'",
            "tool_choice",
        ),
        ({"tool_choice": {"type": "function", "name": "x"}}, "no tool 'x'", "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "x"}}]},
            "beside their type",
            "tools",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name: there is another", "tools"),
        ({"background": True}, "background is not supported", "background"),
        ({"max_tokens": 3}, "send max_output_tokens", "max_tokens"),
        ({"store": "yes"}, "store:", "store"),
        ({"input": []}, "input: is required", "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type: items of type", "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type: 'input_image' is not supported",
            "input",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content", "input"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].arguments", "input"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "text"),
    ],
)
async def test_what_cannot_be_served_is_named(
    rig: AppRig, fields: dict[str, Any], said: str, param: str
) -> None:
    response = await rig.post(PATH, **{"input": "a", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


async def test_a_failure_under_way_ends_the_stream_with_what_had_come(tmp_path: Path) -> None:
    async with echoing(tmp_path, held=True) as rig:
        async with rig.client.stream(
            "POST", PATH, json={"input": "hello", "stream": True}
        ) as response:
            lines = response.aiter_text()
            got = await anext(lines)
            rig.core.step()
            while '"delta"' not in got:
                got += await anext(lines)
            rig.core.die("out of memory")
            got += "".join([piece async for piece in lines])
    failed = checked_response(events_in(got))
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert "out of memory" in failed["error"]["message"]
    assert "hello".startswith(text_of(failed["output"][0]) or "-")


# The conversation as the model reads it, through a template of a family.


@pytest.fixture
async def qwen(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    async with scripted(tmp_path, lambda prompt: "OK.") as rig:
        yield rig


async def prompt_of(rig: ScriptedRig, items: list[dict[str, Any]], **fields: Any) -> str:
    response = await rig.post(PATH, input=items, **fields)
    assert response.status_code == 200, response.text
    return rig.core.prompts[-1]


async def test_the_items_of_an_answer_are_rendered_as_it_was_generated(tmp_path: Path) -> None:
    call = WRITERS["hermes"][1]([("weather", {"city": "Paris"})], plain)
    answer = f"<think>\nThe city?\n</think>\n\nI look.\n{call}"
    async with scripted(tmp_path, in_turn(answer)) as rig:
        items: list[dict[str, Any]] = [{"role": "user", "content": "Is it warm?"}]
        fields = {"tools": [WEATHER], "include": ["reasoning.encrypted_content"]}
        first = (await rig.post(PATH, input=items, **fields)).json()
        reasoning, _, call_item = first["output"]
        del reasoning["content"]  # as clients send it back that know encrypted content alone
        items += first["output"]
        output = {"type": "function_call_output", "call_id": call_item["call_id"]}
        items.append({**output, "output": [{"type": "input_text", "text": "20 °C"}]})
        second = await prompt_of(rig, items, **fields)
    assert second.startswith(rig.core.prompts[0] + answer)
    assert "20 °C" in second


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "zzz"}}, "reasoning"),
        ({"include": ["foo"]}, "include"),
        ({"include": ["reasoning.encrypted_content", 3]}, "include"),
    ],
)
async def test_names_that_nobody_knows_are_refused(
    qwen: ScriptedRig, fields: dict[str, Any], param: str
) -> None:
    refused = await qwen.post(PATH, input="hi", **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_instructions_and_what_systems_say_first_are_one_message(qwen: ScriptedRig) -> None:
    items = [
        {"role": "developer", "content": "B"},
        {"role": "system", "content": [{"type": "input_text", "text": "C"}]},
        {"role": "user", "content": "hi"},
    ]
    prompt = await prompt_of(qwen, items, instructions="A")
    assert prompt.count("<|im_start|>system") == 1
    assert "A\n\nB\n\nC" in prompt


async def test_history_shows_custom_and_namespaced_calls_as_the_model_wrote_them(
    qwen: ScriptedRig,
) -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": 'a"b'},
        {"type": "function_call", "call_id": "2", "name": "read", "namespace": "files",
         "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {"type": "function_call_output", "call_id": "2", "output": "text"},
    ]  # fmt: skip
    prompt = await prompt_of(qwen, items, tools=TOOLS)
    assert json.dumps({"input": 'a"b'}) in prompt
    assert '"read"' in prompt.rpartition("<|im_start|>user\nhi")[2]


# Clients.


@pytest.fixture
async def client(rig: AppRig) -> AsyncIterator[AsyncOpenAI]:
    """It refuses an answer that is not of its types to the letter."""
    async with rig.openai_client() as client:
        yield client.with_options(_extra_kwargs={"_strict_response_validation": True})


class City(BaseModel):
    name: str


async def test_openais_client_reads_whole_streamed_and_parsed_answers(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "extra_body": {"stop": END}}
    first = await client.responses.create(input="Hi." + END, **asked)
    assert first.output_text == "Hi."
    async with client.responses.stream(input="Hi." + END, **asked) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "Hi."
    assert types[-1] == "response.completed"
    parsed = await client.responses.parse(
        input='{"name": "Paris"}' + END, text_format=City, **asked
    )
    assert parsed.output_parsed == City(name="Paris")
    counted = await client.responses.input_tokens.count(input="Hi." + END, model="tiny")
    assert first.usage is not None
    assert counted.input_tokens == first.usage.input_tokens
