"""What the HTTP API answers to requests that are wrong, and that it goes on afterwards."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from atom.config import Config
from atom.entrypoints.http.body_budget import MAX_BODY_BYTES
from atom.entrypoints.openai.protocol import MAX_ANSWERS, MAX_MESSAGES, MAX_PROMPTS
from tests.support.engine_core.front_half import SERVED_NAME, build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app

CONTEXT = 64
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("model")
    return build_test_config(write_model_folder(folder, context_tokens=CONTEXT))


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared_rig: AppRig) -> AppRig:
    return shared_rig


async def refusal(rig: AppRig, path: str, body: bytes | dict[str, Any]) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await rig.client.post(path, content=content)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert rig.core.added == []
    return response.status_code, error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"messages": [}',
        b'{"messages": "\xff\xfe"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN1}',
        '{"prompt": "a"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"prompt":' * 50_000,
    ],
)
async def test_what_is_not_json_is_400(rig: AppRig, body: bytes) -> None:
    for path in (CHAT, TEXT):
        status, error = await refusal(rig, path, body)
        assert (status, error["code"]) == (400, "invalid_json")
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'"text"'])
async def test_json_that_is_not_an_object_is_400(rig: AppRig, body: bytes) -> None:
    status, error = await refusal(rig, TEXT, body)
    assert status == 400
    assert "JSON object" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "messages", "messages: is required"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hi"}, "messages", "valid array"),
        ({"messages": [{}]}, "messages", r"messages[0].role: is required"),
        ({"messages": [USER, 3]}, "messages", "messages[1]"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content: is required"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content"),
        (
            {"messages": [USER] * (MAX_MESSAGES + 1)},
            "messages",
            f"{MAX_MESSAGES + 1} messages are more than",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages",
            "this server takes text only",
        ),
        ({"messages": [USER], "max_tokens": -1}, "max_tokens", "at least 1, got -1"),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"messages": [USER], "max_completion_tokens": -5}, "max_completion_tokens", "equal to 1"),
        ({"messages": [USER], "max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"messages": [USER], "max_tokens": 1.5}, "max_tokens", "valid integer"),
        ({"messages": [USER], "temperature": -0.1}, "temperature", "between 0 and 100"),
        ({"messages": [USER], "temperature": "hot"}, "temperature", "valid number"),
        ({"messages": [USER], "top_p": 0}, "top_p", "(0, 1]"),
        ({"messages": [USER], "top_p": 1.5}, "top_p", "(0, 1]"),
        ({"messages": [USER], "top_k": -2}, "top_k", "at least 0"),
        ({"messages": [USER], "seed": 2**63}, "seed", "64 bits"),
        ({"messages": [USER], "seed": 10**400}, "seed", ""),
        ({"messages": [USER], "stop": [1]}, "stop", "stop[0]"),
        ({"messages": [USER], "stop": {"a": 1}}, "stop", "valid string"),
        ({"messages": [USER], "stop": ""}, "stop", "1 to 1024"),
        ({"messages": [USER], "stop": ["x"] * 17}, "stop", "at most 16"),
        ({"messages": [USER], "stop": "x" * 2000}, "stop", "1 to 1024"),
        ({"messages": [USER], "stop_token_ids": [9999]}, "stop_token_ids", "0 to 293"),
        ({"messages": [USER], "stop_token_ids": [0] * 65}, "stop_token_ids", "at most 64"),
        ({"messages": [USER], "stream": "yes"}, "stream", "valid boolean"),
        ({"messages": [USER], "stream_options": {"include_usage": 3}}, "stream_options", ""),
        ({"messages": [USER], "tools": [{}] * 129}, "tools", "at most 128"),
        ({"messages": [USER], "tool_choice": "any"}, "tool_choice", "'auto' or 'required'"),
        ({"messages": [USER], "n": 0}, "n", "between 1 and 128"),
        ({"messages": [USER], "n": 1_000_000}, "n", "between 1 and 128"),
        ({"messages": [USER], "n": 10**30}, "n", "between 1 and 128"),
        ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs", "equal to 20"),
        ({"messages": [USER], "logprobs": True, "top_logprobs": -1}, "top_logprobs", "equal to 0"),
        ({"messages": [USER], "logprobs": 5}, "logprobs", "valid boolean"),
        ({"messages": [USER], "top_logprobs": 5}, "top_logprobs", "needs logprobs"),
        ({"messages": [USER], "prompt_logprobs": 21}, "prompt_logprobs", "0 and 20"),
        ({"messages": [USER], "min_p": 1.5}, "min_p", "between 0 and 1"),
        ({"messages": [USER], "min_tokens": -1}, "min_tokens", "at least 0"),
        ({"messages": [USER], "min_tokens": 5, "max_tokens": 4}, "min_tokens", "max_tokens (4)"),
        ({"messages": [USER], "presence_penalty": 3}, "presence_penalty", "-2 and 2"),
        ({"messages": [USER], "frequency_penalty": -3}, "frequency_penalty", "-2 and 2"),
        ({"messages": [USER], "repetition_penalty": 0}, "repetition_penalty", "0.01 and 100"),
        ({"messages": [USER], "logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"messages": [USER], "logit_bias": {"7": 1, "0_7": 2}}, "logit_bias", "token ids"),
        ({"messages": [USER], "logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
        ({"messages": [USER], "logit_bias": {"٧": 1}}, "logit_bias", "token ids"),
        ({"messages": [USER], "logit_bias": {"5": 101}}, "logit_bias", "-100 and 100"),
        ({"messages": [USER], "logit_bias": {"9999": 1}}, "logit_bias", "0 to 293"),
        ({"messages": [USER], "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", ""),
        ({"messages": [USER], "allowed_token_ids": []}, "allowed_token_ids", "at least one"),
        ({"messages": [USER], "allowed_token_ids": [-1]}, "allowed_token_ids", "0 to 293"),
        ({"messages": [USER], "bad_words": ["x"] * 257}, "bad_words", "256"),
        ({"messages": [USER], "bad_words": [""]}, "bad_words", "1 to 256"),
        ({"messages": [USER], "timeout": 0}, "timeout", "greater than 0"),
        (
            {"messages": [USER], "chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs",
            "may not set",
        ),
    ],
)
async def test_a_wrong_chat_field_is_400_and_named(
    rig: AppRig, fields: dict[str, Any], param: str, words: str
) -> None:
    status, error = await refusal(rig, CHAT, fields)
    assert (status, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt"),
        ("", "empty"),
        ([], "at least 1 item"),
        ([""], "empty"),
        ([[]], "empty"),
        ([["a"]], "valid integer"),
        ([1, "a"], "valid integer"),
        (["a", 1], "valid string"),
        ([1.5], "valid string"),
        ({"a": 1}, "valid string"),
        (["a"] * (MAX_PROMPTS + 1), f"at most {MAX_PROMPTS}"),
        ([294], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        ([[1], [10**30]], "outside the vocabulary"),
        ([True], "valid integer"),
    ],
)
async def test_a_wrong_prompt_is_400(rig: AppRig, prompt: Any, words: str) -> None:
    status, error = await refusal(rig, TEXT, {"prompt": prompt})
    assert (status, error["param"]) == (400, "prompt")
    assert words in error["message"]


async def test_prompts_times_answers_are_bounded(rig: AppRig) -> None:
    status, error = await refusal(rig, TEXT, {"prompt": ["a"] * MAX_PROMPTS, "n": 9})
    assert (status, error["param"]) == (400, "n")
    assert f"at most {MAX_ANSWERS}" in error["message"]


async def test_nothing_is_asked_for_without_echo(rig: AppRig) -> None:
    status, error = await refusal(rig, TEXT, {"prompt": "a", "max_tokens": 0})
    assert (status, error["param"]) == (400, "max_tokens")


async def test_one_wrong_prompt_of_many_leaves_nothing_running(rig: AppRig) -> None:
    status, error = await refusal(rig, TEXT, {"prompt": ["fine", "also fine", ""]})
    assert (status, error["param"]) == (400, "prompt")
    assert rig.engine.open_requests == 0


async def test_a_list_of_many_wrong_items_costs_one_error(rig: AppRig) -> None:
    body = b'{"prompt": [1' + b',"a"' * 40_000 + b"]}"
    status, error = await refusal(rig, TEXT, body)
    assert status == 400
    assert len(error["message"]) < 500


async def test_remedies_are_spelled_as_the_client_would_send_them(rig: AppRig) -> None:
    refused = {"use_beam_search": True, "modalities": ["audio"], "suffix": "x"}
    said = [(await refusal(rig, TEXT, {"prompt": "a", key: refused[key]}))[1] for key in refused]
    for error, remedy in zip(said, ("false", '["text"]', '""'), strict=True):
        assert error["message"].endswith(f"send {remedy}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 2),
        ("suffix", "end"),
        ("use_beam_search", True),
        ("guided_whitespace_pattern", "[ ]?"),
        ("chat_template", "{{ 1 }}"),
        ("moderation", {"model": "omni-moderation-latest"}),
    ],
)
async def test_known_fields_without_effect_here_are_refused_by_name(
    rig: AppRig, name: str, value: Any
) -> None:
    for path, fields in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "a"})):
        status, error = await refusal(rig, path, {**fields, name: value})
        assert (status, error["param"]) == (400, name)
        assert error["code"] == "unsupported_parameter"
        assert f"{name} is not supported" in error["message"]


async def test_an_unknown_model_is_404_and_the_served_one_is_named(rig: AppRig) -> None:
    for path, fields in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "a"})):
        status, error = await refusal(rig, path, {**fields, "model": "gpt-5"})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert repr(SERVED_NAME) in error["message"]
    _, error = await refusal(rig, TEXT, {"prompt": "a", "model": "x" * 100_000})
    assert len(error["message"]) < 500
    response = await rig.client.get("/nothing/" + "x" * 50_000)
    assert response.status_code == 404
    assert len(response.json()["error"]["message"]) < 500
    response = await rig.client.get("/v1/models/some/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 8000])
async def test_a_prompt_longer_than_the_context_states_both_lengths(
    rig: AppRig, length: int
) -> None:
    status, error = await refusal(rig, TEXT, {"prompt": "x" * length})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert f"{length} tokens" in error["message"]
    assert f"{CONTEXT} tokens" in error["message"]


async def test_an_answer_longer_than_the_context_ends_at_the_context(rig: AppRig) -> None:
    response = await rig.post(TEXT, prompt="x" * (CONTEXT - 1), max_tokens=10**30)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 1
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_a_conversation_the_template_refuses_is_400(rig: AppRig) -> None:
    messages = [{"role": "user", "content": "x"}] * 10
    response = await rig.post(CHAT, messages=messages, chat_template_kwargs={"a": 1})
    assert response.status_code == 400  # longer than the context, after rendering
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_a_base_model_refuses_chats_with_the_remedy(config: Config) -> None:
    settings = config.model.path / "tokenizer_config.json"
    kept = settings.read_text()
    settings.unlink()
    try:
        async with serve_app(config) as rig:
            status, error = await refusal(rig, CHAT, {"messages": [USER]})
            assert status == 400
            assert "--chat-template" in error["message"]
            assert (await rig.post(TEXT, prompt="a")).status_code == 200
    finally:
        settings.write_text(kept)


async def test_a_body_over_the_limit_is_413(rig: AppRig) -> None:
    large = b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'
    response = await rig.client.post(TEXT, content=large)
    assert response.status_code == 413
    assert "8 MiB" in response.json()["error"]["message"]


async def test_a_body_over_the_limit_without_a_length_is_413(rig: AppRig) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**16 + 2):
            yield b"a" * 2**16

    response = await rig.client.post(TEXT, content=chunks())
    assert response.status_code == 413


async def test_a_compressed_body_is_415(rig: AppRig) -> None:
    body = gzip.compress(b'{"prompt": "a"}')
    response = await rig.client.post(TEXT, content=body, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_a_body_that_says_it_is_not_compressed_is_read(rig: AppRig, encoding: str) -> None:
    body = b'{"prompt": "a", "max_tokens": 2}'
    headers = {"content-encoding": encoding}
    assert (await rig.client.post(TEXT, content=body, headers=headers)).status_code == 200


async def test_a_byte_order_mark_is_passed_over(rig: AppRig) -> None:
    body = '{"prompt": "a", "max_tokens": 2}'.encode("utf-8-sig")
    assert (await rig.client.post(TEXT, content=body)).status_code == 200


async def test_only_content_is_said_to_be_text(rig: AppRig) -> None:
    status, error = await refusal(
        rig, CHAT, {"messages": [USER], "response_format": {"type": "xml"}}
    )
    assert (status, error["param"]) == (400, "response_format")
    assert "text only" not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
async def test_routes_that_are_not_there_are_json_errors(
    rig: AppRig, method: str, path: str, status: int
) -> None:
    response = await rig.client.request(method, path)
    assert response.status_code == status
    assert f"{method} {path}" in response.json()["error"]["message"]
    if status == 405:
        assert response.headers["allow"] in response.json()["error"]["message"]


async def test_a_fault_of_ours_is_500_without_its_insides(
    rig: AppRig, caplog: pytest.LogCaptureFixture
) -> None:
    template = rig.engine.processor
    working = template.inputs
    template.inputs = None  # type: ignore[assignment]
    response = await rig.chat("x")
    template.inputs = working
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "NoneType" not in error["message"]
    assert "NoneType" in caplog.text  # but the log has it


async def test_a_client_that_leaves_inside_its_body_does_no_harm(rig: AppRig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
