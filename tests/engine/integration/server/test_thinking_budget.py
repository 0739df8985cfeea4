"""A real server bounds how long its model reasons, by every field that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process

CHECKPOINT = Path(__file__).resolve().parents[4] / "examples" / "models" / "atom-tiny"
# Reasons unless it is told not to; what it reasons is free.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "assistant: {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}"
)
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
MARK = "</think>"
DRAWN = {"temperature": 1.5, "ignore_eos": True, "seed": 5, "max_tokens": 40}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ("--chat-template", str(folder / "template.jinja"), "--max-num-seqs", "16")
    with server_process(CHECKPOINT, folder / "log", *flags) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def mark(server: ServerProcess) -> list[int]:
    answer = server.post("/tokenize", prompt=MARK, add_special_tokens=False)
    found: list[int] = answer.json()["tokens"]
    return found


def chat(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "return_token_ids": True, **DRAWN, **fields}
    answer = server.post("/v1/chat/completions", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_without_a_budget_it_reasons_to_the_end(server: ServerProcess) -> None:
    answer = chat(server)
    assert answer["choices"][0]["message"]["content"] is None
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 40


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 20])
def test_the_mark_is_forced_and_the_answer_follows(
    server: ServerProcess, mark: list[int], tokens: int
) -> None:
    answer = chat(server, thinking_token_budget=tokens, n=3)
    for choice in answer["choices"]:
        ids = choice["token_ids"]
        assert ids[tokens : tokens + len(mark)] == mark
        assert choice["message"]["content"]
        assert MARK not in choice["message"]["content"]
        assert len(ids) == 40
    reasoned = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert reasoned == 3 * (tokens + len(mark))


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"reasoning_budget_tokens": 4}, 4), ({"thinking_budget_tokens": 4}, 4),
        ({"thinking_budget": 4}, 4), ({"thinking": {"type": "enabled", "budget_tokens": 4}}, 4),
        ({"thinking_token_budget": 4, "thinking_budget": 4}, 4),
        ({"thinking_token_budget": -1}, 40), ({"reasoning_effort": "high"}, 40),
        ({"thinking": {"type": "enabled"}}, 40), ({"thinking": {"type": "adaptive"}}, 40),
        ({"reasoning_effort": "low"}, 40), ({"thinking_token_budget": 5000}, 40),
    ],
)  # fmt: skip
def test_every_servers_field_bounds_it(
    server: ServerProcess, mark: list[int], fields: dict[str, Any], tokens: int
) -> None:
    ids = chat(server, **fields)["choices"][0]["token_ids"]
    assert ids[tokens : tokens + len(mark)] == mark[: max(0, 40 - tokens)]


def test_an_effort_is_so_many_tokens(server: ServerProcess, mark: list[int]) -> None:
    ids = chat(server, reasoning_effort="minimal", max_tokens=150)["choices"][0]["token_ids"]
    assert ids[128 : 128 + len(mark)] == mark


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"}, {"enable_thinking": False},
        {"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)  # fmt: skip
def test_the_template_is_told_not_to_reason(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = chat(server, thinking_token_budget=3, **fields)
    assert "reasoning" not in answer["choices"][0]["message"]
    text = server.post("/detokenize", tokens=answer["prompt_token_ids"]).json()["prompt"]
    assert text.endswith("</think>\n\n")


def test_it_streams_with_a_structure_behind_it(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"speed": {"enum": ["slow", "fast"]}},
        "required": ["speed"],
    }
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=SERVED_NAME, messages=MESSAGES, max_tokens=60, seed=5, temperature=1.0,
            stream=True, stream_options={"include_usage": True},
            response_format={
                "type": "json_schema", "json_schema": {"name": "a", "schema": schema},
            },
            extra_body={"thinking_token_budget": 6},
        )  # fmt: skip
        chunks = [chunk.model_dump() for chunk in stream]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning") or "" for delta in deltas)
    text = "".join(delta["content"] or "" for delta in deltas)
    assert json.loads(text)["speed"] in ("slow", "fast")
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": 3, "thinking_budget": 4}, "differently"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking_token_budget": 3, "allowed_token_ids": [1, 2]}, "must hold the tokens of"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(
    server: ServerProcess, fields: dict[str, Any], said: str
) -> None:
    answer = server.post("/v1/chat/completions", messages=MESSAGES, **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    text = server.post("/v1/completions", prompt="a", thinking_token_budget=3)
    assert "send a chat" in text.json()["error"]["message"]
