"""Every body that a client may get, checked by the official client's own types, strictly.

The client itself takes whatever comes and hands it on, so that a wrong type shows in the user's
program, not in the client; here its types validate. Fields that OpenAI's document requires must be
there even when they are null: clients made from it refuse what lacks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import httpx
import pytest
from openai import BaseModel as ClientModel
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TEMPLATE = """\
{%- for tool in tools or [] %}{{ 'tool ' + tool.function.name + '\\n' }}{% endfor %}
{%- for message in messages %}
    {{- message.role + ': ' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name + '(' + (call.function.arguments | tojson) + ')' }}
    {%- endfor %}
{%- endfor %}
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "name": "ada", "content": [{"type": "text", "text": "is it warm?"}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
]
# Fields that a client may send with any request, to be ignored or to have their effect.
COURTESIES: dict[str, Any] = {
    "user": "ada",
    "metadata": {"purpose": "test"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "verbosity": "low",
    "reasoning_effort": "low",
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "tools": [TOOL],
}

Body = TypeVar("Body", bound=ClientModel)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_tiny_checkpoint(folder / "qwen3")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--num-kv-blocks", "400", "--chat-template", str(template))
    with server_process(checkpoint, folder / "log", *flags) as server:
        yield server.wait_ready()


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def strictly(kind: type[Body], text: str) -> Body:
    return kind.model_validate_json(text, strict=True)


def completion_in(text: str) -> Completion:
    """Two things that OpenAI's own server does are not in the types: a stream's chunks have no
    reason for the end before it, and the first token of an echoed prompt no probability."""
    text = text.replace('"finish_reason":null', '"finish_reason":"stop"')
    text = text.replace('"token_logprobs":[null', '"token_logprobs":[0.0')
    return strictly(Completion, text.replace('"top_logprobs":[null', '"top_logprobs":[{}'))


def events_of(http: httpx.Client, path: str, fields: dict[str, Any]) -> list[str]:
    """The data of a stream's events; the last is [DONE]."""
    with http.stream("POST", path, json={**fields, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return [line.removeprefix("data: ") for line in response.iter_lines() if line]


def chat_fields(**fields: Any) -> dict[str, Any]:
    settings = {"model": SERVED_NAME, "messages": CONVERSATION, "max_completion_tokens": 6}
    return {**settings, "ignore_eos": True, "n": 2, "seed": 1, **fields}


def text_fields(**fields: Any) -> dict[str, Any]:
    settings = {"model": SERVED_NAME, "prompt": ["hello", "the"], "max_tokens": 6}
    return {**settings, "ignore_eos": True, "n": 2, "seed": 1, **fields}


CHATS = [
    {},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 3},
    {"stop": ["zz"]},
    {"ignore_eos": False, "stop": ["a", "e", "i", "o"], "max_completion_tokens": 60},
    COURTESIES,
]
TEXTS = [{}, {"logprobs": 0}, {"logprobs": 2, "echo": True}, {"logit_bias": {"5": -3}, "stop": "z"}]


@pytest.mark.parametrize("fields", CHATS)
def test_a_whole_chat(http: httpx.Client, fields: dict[str, Any]) -> None:
    response = http.post(CHAT, json=chat_fields(**fields))
    answer = strictly(ChatCompletion, response.text)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, raw in zip(answer.choices, response.json()["choices"], strict=True):
        assert {"logprobs", "message", "finish_reason", "index"} <= raw.keys()
        assert {"role", "content", "refusal"} <= raw["message"].keys()
        assert (choice.logprobs is not None) == ("logprobs" in fields)
        for token in (choice.logprobs and choice.logprobs.content) or []:
            assert len(token.top_logprobs) == fields.get("top_logprobs", 0)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("fields", CHATS)
@pytest.mark.parametrize("with_usage", [True, False])
def test_a_streamed_chat(http: httpx.Client, fields: dict[str, Any], with_usage: bool) -> None:
    options = {"include_usage": with_usage, "include_obfuscation": False}
    *data, done = events_of(http, CHAT, chat_fields(**fields, stream_options=options))
    assert done == "[DONE]"
    chunks = [strictly(ChatCompletionChunk, text) for text in data]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    of_choices = chunks[:-1] if with_usage else chunks
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in of_choices if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert all(choice.finish_reason is None for choice in mine[:-1])
        assert mine[-1].finish_reason in ("stop", "length")
        scored = [token for choice in mine if choice.logprobs for token in choice.logprobs.content]
        assert bool(scored) == ("logprobs" in fields)
    assert all(chunk.usage is None for chunk in of_choices)
    if with_usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        whole = strictly(ChatCompletion, http.post(CHAT, json=chat_fields(**fields)).text)
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("fields", TEXTS)
def test_a_whole_completion(http: httpx.Client, fields: dict[str, Any]) -> None:
    response = http.post(TEXT, json=text_fields(**fields))
    answer = completion_in(response.text)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for raw in response.json()["choices"]:
        assert {"logprobs", "text", "finish_reason", "index"} <= raw.keys()


@pytest.mark.parametrize("fields", TEXTS)
def test_a_streamed_completion(http: httpx.Client, fields: dict[str, Any]) -> None:
    options = {"include_usage": True}
    *data, done = events_of(http, TEXT, text_fields(**fields, stream_options=options))
    assert done == "[DONE]"
    texts = dict.fromkeys(range(4), "")
    ends = dict.fromkeys(range(4), 0)
    for text in data:
        chunk = completion_in(text)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] += '"finish_reason":null' not in text
    assert set(ends.values()) == {1}
    whole = completion_in(http.post(TEXT, json=text_fields(**fields)).text)
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_the_models(http: httpx.Client) -> None:
    page = http.get("/v1/models").json()
    assert page["object"] == "list"
    assert [Model.model_validate(card, strict=True).id for card in page["data"]] == [SERVED_NAME]
    assert strictly(Model, http.get(f"/v1/models/{SERVED_NAME}").text).object == "model"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": []}, 400),
        (CHAT, {"messages": CONVERSATION, "model": "other"}, 404),
        (TEXT, {"prompt": [10**6]}, 400),
        ("/v1/moderations", {"input": "x"}, 404),
        ("/health", {}, 405),
        ("/reset_prefix_cache", {}, 403),
    ],
)
def test_every_refusal_has_openais_four_fields(
    http: httpx.Client, path: str, body: dict[str, Any], status: int
) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)


def test_tools_and_what_they_said_reach_the_template(http: httpx.Client) -> None:
    def prompt_of(**fields: Any) -> str:
        asked = {"messages": CONVERSATION, **fields}
        tokens = http.post("/tokenize", json=asked).json()["tokens"]
        return str(http.post("/detokenize", json={"tokens": tokens}).json()["prompt"])

    history = (
        'system: be briefuser: is it warm?assistant: weather({"city": "Paris"})tool: 21 degrees'
    )
    assert prompt_of() == history
    assert prompt_of(tools=[TOOL]) == f"tool weather\n{history}"
    assert prompt_of(tools=[TOOL], tool_choice="none") == history
