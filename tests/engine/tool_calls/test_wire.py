"""Tool calls and reasoning as clients get them: whole and streamed, with everything beside them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import AddedToken

from tests.engine.tool_calls.echo import CHAT, END, TOOLS, echoing, streamed, whole
from tests.support.server.http_app import AppRig
from tests.support.waiting import eventually, within

PARIS = '{"city": "Paris"}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nThe city?\n</think>\n\n"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


def message_in(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's deltas make, as a client puts it together."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for choice in choices:
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["function"]["arguments"] == ""
                assert call["type"] == "function"
                message["tool_calls"].append((call["function"]["name"], "", call["id"]))
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                name, arguments, number = message["tool_calls"][call["index"]]
                arguments += call["function"]["arguments"]
                message["tool_calls"][call["index"]] = name, arguments, number
    return message


@pytest.mark.parametrize(
    ("answer", "content", "reasoning", "calls"),
    [
        (CALL, None, None, [("weather", PARIS)]),
        (f"I look.\n{CALL}\n{TIME}", "I look.", None, [("weather", PARIS), ("time", "{}")]),
        (f"{THOUGHT}{CALL}", None, "The city?", [("weather", PARIS)]),
        (f"{THOUGHT}It is warm.", "It is warm.", "The city?", []),
        ("A <tool_call> is a mark.", "A <tool_call> is a mark.", None, []),
        ("grüße", "grüße", None, []),
    ],
)
async def test_an_answer_is_the_same_whole_and_streamed(
    rig: AppRig, answer: str, content: str | None, reasoning: str | None, calls: list[Any]
) -> None:
    choice = await whole(rig, answer)
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", content)
    assert message.get("reasoning") == message.get("reasoning_content") == reasoning
    found = message.get("tool_calls", [])
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found] == calls
    assert all(call["type"] == "function" for call in found)
    reason = "tool_calls" if calls else "stop"
    assert (choice["finish_reason"], choice["finish_detail"]) == (reason, "stop_sequence")

    events = await streamed(rig, answer)
    assert events[0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["finish_reason"] for event in events if event["finish_reason"]] == [reason]
    made = message_in(events)
    assert made["content"] == (content or "")
    assert made["reasoning"] == (reasoning or "")
    assert [call[:2] for call in made["tool_calls"]] == calls
    ids = [call[2] for call in made["tool_calls"]] + [call["id"] for call in found]
    assert len(set(ids)) == len(ids)


async def test_a_stop_string_does_not_end_the_reasoning(rig: AppRig) -> None:
    answer = f"<think> of{END} it"
    tokens = await count_tokens(rig, answer)
    message = (await whole(rig, answer, max_tokens=tokens))["message"]
    made = message_in(await streamed(rig, answer, max_tokens=tokens))
    assert message["content"] is None
    assert message["reasoning"] == made["reasoning"] == f" of{END} it"


async def test_arguments_are_sent_before_the_call_is_over(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": CALL + END}]
    body = {"messages": messages, "stop": END, "tools": TOOLS, "stream": True}
    async with echoing(tmp_path, held=True) as rig:
        begun = await count_tokens(rig, CALL[: CALL.index("ris")])
        rest = await count_tokens(rig, CALL + END) - begun
        choices: list[dict[str, Any]] = []
        early = ""

        async def read() -> None:
            nonlocal early
            async with rig.client.stream("POST", CHAT, json=body) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    choices.extend(json.loads(line.removeprefix("data: "))["choices"])
                    calls = message_in(choices)["tool_calls"]
                    if calls and calls[0][1] and not early:
                        early = calls[0][1]
                        steps(rig, rest)

        reading = asyncio.create_task(read())
        await eventually(lambda: bool(rig.core.added), "the request is there")
        steps(rig, begun)
        await within(reading, "arguments before the end of their call")
    assert '{"city": "Pa'.startswith(early)
    assert message_in(choices)["tool_calls"][0][:2] == ("weather", PARIS)


async def count_tokens(rig: AppRig, text: str) -> int:
    return int((await rig.post("/tokenize", prompt=text)).json()["count"])


def steps(rig: AppRig, count: int) -> None:
    for _ in range(count):
        rig.core.step()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_off_says_so(rig: AppRig, stream: bool) -> None:
    tokens = await count_tokens(rig, CALL[: CALL.index("ris")])
    if stream:
        choices = await streamed(rig, CALL, max_tokens=tokens)
        (call,) = message_in(choices)["tool_calls"]
        assert call[1] == '{"city": "Pa'
    else:
        choices = [await whole(rig, CALL, max_tokens=tokens)]
        (call,) = choices[0]["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Pa'}
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"tools": None}, CALL),
        ({"tool_choice": "none"}, CALL),
        ({"response_format": {"type": "json_object"}}, CALL),
        ({"tool_choice": "auto"}, None),
    ],
)
async def test_calls_are_looked_for_only_where_there_can_be_some(
    rig: AppRig, fields: dict[str, Any], shown: str | None
) -> None:
    assert (await whole(rig, CALL, **fields))["message"]["content"] == shown
    made = message_in(await streamed(rig, CALL, **fields))
    assert made["content"] == (shown or "")


async def test_reasoning_is_left_out_where_it_is_not_wanted(rig: AppRig) -> None:
    choice = await whole(rig, THOUGHT + "Yes.", include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}


async def test_one_call_where_several_are_not_wanted(rig: AppRig) -> None:
    fields = {"parallel_tool_calls": False}
    choice = await whole(rig, f"{CALL}\n{TIME}", **fields)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    made = message_in(await streamed(rig, f"{CALL}\n{TIME}", **fields))
    assert [call[0] for call in made["tool_calls"]] == ["weather"]


async def test_log_probabilities_are_all_told(tmp_path: Path) -> None:
    """Also of tokens whose text is markup, or not decided on yet."""
    body = {
        "messages": [{"role": "user", "content": THOUGHT + CALL}],
        "tools": TOOLS, "logprobs": True, "max_tokens": 60, "n": 2,
    }  # fmt: skip
    async with echoing(tmp_path / "model") as rig:
        text = (await rig.post(CHAT, **body)).json()
        events = await rig.events(CHAT, **body, stream_options={"include_usage": True})
    assert events[-2]["usage"] == text["usage"]
    assert text["usage"]["completion_tokens"] == 120
    for index, choice in enumerate(text["choices"]):
        mine = [
            item for event in events[:-2] for item in event["choices"] if item["index"] == index
        ]
        told = [entry for item in mine for entry in (item["logprobs"] or {}).get("content", ())]
        assert told == choice["logprobs"]["content"]
        assert message_in(mine)["reasoning"] == choice["message"]["reasoning"] == "The city?"


async def test_the_official_client_takes_every_body(rig: AppRig) -> None:
    body = {
        "messages": [{"role": "user", "content": f"{THOUGHT}Hm.{CALL}{END}"}],
        "stop": END, "tools": TOOLS,
    }  # fmt: skip
    response = await rig.post(CHAT, **body)
    answer = ChatCompletion.model_validate_json(response.text, strict=True)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls
    chunks = [
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
        for event in (await rig.events(CHAT, **body))[:-1]
    ]
    assert any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)


async def test_bare_objects_are_calls_of_a_llama(tmp_path: Path) -> None:
    answer = '{"name": "weather", "parameters": {"city": "Paris"}}'
    async with echoing(tmp_path, "llama3_json") as rig:
        choice = await whole(rig, answer)
        made = message_in(await streamed(rig, answer))
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    assert made["tool_calls"][0][:2] == ("weather", PARIS)


async def test_marks_may_be_tokens_of_their_own(tmp_path: Path) -> None:
    """As Qwen's are, which are text; Llama's is a special token, which is none."""
    qwen = [AddedToken(text) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    async with echoing(tmp_path / "qwen", marks=qwen) as rig:
        choice = await whole(rig, THOUGHT + CALL)
        made = message_in(await streamed(rig, THOUGHT + CALL))
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    assert choice["message"]["reasoning"] == made["reasoning"] == "The city?"
    assert made["tool_calls"][0][:2] == ("weather", PARIS)

    llama = [AddedToken("<|python_tag|>", special=True)]
    answer = '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}'
    async with echoing(tmp_path / "llama", "llama3_json", marks=llama) as rig:
        choice = await whole(rig, answer)
        made = message_in(await streamed(rig, answer))
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    assert choice["message"]["content"] is None
    assert made["tool_calls"][0][:2] == ("weather", PARIS)


async def test_reasoning_that_the_template_began_needs_no_opening_mark(rig: AppRig) -> None:
    """The prompt, which is also what is answered here, ends with the mark."""
    content = f"The city?\n</think>\n\nParis.{END}<think>\n"
    message = (await whole(rig, "", messages=[{"role": "user", "content": content}], tools=None))[
        "message"
    ]
    assert (message["reasoning"], message["content"]) == ("The city?", "Paris.")


async def test_where_thinking_is_switched_off_nothing_is_taken_for_it(rig: AppRig) -> None:
    content = f"<think>It is a mark.{END}<think>\n\n</think>\n\n"
    message = (await whole(rig, "", messages=[{"role": "user", "content": content}], tools=None))[
        "message"
    ]
    assert message["content"] == "<think>It is a mark."
    assert "reasoning" not in message


async def test_a_family_that_is_not_known_is_passed_on_as_it_is(tmp_path: Path) -> None:
    async with echoing(tmp_path, "unknown") as rig:
        choice = await whole(rig, THOUGHT + CALL)
        assert choice["message"]["content"] == THOUGHT + CALL
        assert choice["finish_reason"] == "stop"
