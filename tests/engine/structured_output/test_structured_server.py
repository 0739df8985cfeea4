"""Structured output as a client of the real server sees it, with OpenAI's own library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

from tests.support.processes import has_ended
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tests.support.server.unanswered import unanswered
from tests.support.structured_output.hostile_grammars import FAMILIES, hostile
from tests.support.structured_output.matcher_processes import compile_servers
from tests.support.waiting import wait_until

CHECKPOINT = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "What is ATOM?"}]


class Engine(BaseModel):
    name: str = Field(max_length=12)
    speed: Literal["slow", "fast"]
    replicas: int = Field(ge=0, le=9)
    note: str | None = Field(default=None, max_length=5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(CHECKPOINT, log, "--max-num-seqs", "32") as server:
        yield server.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    settings = {"model": SERVED_NAME, "messages": MESSAGES, "max_tokens": 200, "temperature": 0}
    return client.chat.completions.create(**{**settings, **fields})


def held_blocks(server: ServerProcess) -> float:
    return server.metric("kv_cache_blocks_used")


def test_parse_gives_the_pydantic_model(client: OpenAI) -> None:
    done = client.chat.completions.parse(
        model=SERVED_NAME, messages=MESSAGES, response_format=Engine, max_tokens=300, temperature=0
    )
    assert done.choices[0].finish_reason == "stop"
    assert isinstance(done.choices[0].message.parsed, Engine)


def test_a_stream_of_a_schema_is_one_json_text(client: OpenAI) -> None:
    schema = {"name": "engine", "schema": Engine.model_json_schema(), "strict": True}
    chunks = ask(
        client, stream=True, response_format={"type": "json_schema", "json_schema": schema}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert Engine.model_validate_json(text)


def test_choices_answer_apart_and_each_fits(client: OpenAI) -> None:
    asked = {"structured_outputs": {"regex": "[A-F]{2}[0-9]{1,3}"}}
    done = ask(client, n=4, temperature=1.0, seed=1, extra_body=asked)
    texts = [choice.message.content for choice in done.choices]
    assert all(re.fullmatch("[A-F]{2}[0-9]{1,3}", text) for text in texts)
    assert len(set(texts)) > 1


def test_plain_text_completions_take_it_too(client: OpenAI) -> None:
    done = client.completions.create(
        model=SERVED_NAME,
        prompt=["one", "two"],
        max_tokens=30,
        extra_body={"guided_choice": ["red", "green"]},
    )
    assert {choice.text for choice in done.choices} <= {"red", "green"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "parenthesis"),
        ({"guided_grammar": "root ::= other"}, "guided_grammar", "Rule 'other' not found"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format",
            "type at $ must be one or more of",
        ),
    ],
)
def test_a_grammar_that_does_not_compile_is_400_also_for_a_stream(
    client: OpenAI, fields: dict[str, Any], param: str, reason: str, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, stream=stream, extra_body=fields)
    assert caught.value.param == param
    assert reason in caught.value.message


def test_a_costly_grammar_is_refused_and_keeps_nobody_waiting(
    server: ServerProcess, client: OpenAI
) -> None:
    costly = {"guided_grammar": FAMILIES["nullable triples"](120)["grammar"]}
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(ask, client, extra_body=costly)
        waiting = [ask(client, max_tokens=3), ask(client, extra_body={"guided_choice": ["a"]})]
        assert waiting[1].choices[0].message.content == "a"
        with pytest.raises(BadRequestError, match="make it smaller"):
            refused.result()
    assert held_blocks(server) == 0


def test_a_grammar_that_takes_too_much_to_follow_is_400_and_counted(
    server: ServerProcess, client: OpenAI
) -> None:
    asked = dict(hostile((25,)))["both sides, 25"]
    before = server.metric("guided_requests_ended_for_work_total")
    with pytest.raises(BadRequestError, match="less ambiguous") as caught:
        ask(client, extra_body={"structured_outputs": {"grammar": asked.grammar}})
    assert caught.value.param == "structured_outputs"
    assert server.metric("guided_requests_ended_for_work_total") == before + 1
    assert ask(client, extra_body={"guided_choice": ["a"]}).choices[0].message.content == "a"


def test_a_client_that_leaves_while_its_grammar_compiles_is_forgotten(
    server: ServerProcess, client: OpenAI
) -> None:
    properties = {f"q{index}": {"type": "string"} for index in range(1500)}
    body = {
        "messages": MESSAGES,
        "stream": True,
        "guided_json": {"type": "object", "properties": properties},
    }
    ask(client, extra_body={"guided_choice": ["a"]})
    (compiler,) = compile_servers()
    compiler.suspend()  # it compiles for as long as the test likes
    try:
        with unanswered(server, "/v1/chat/completions", body):
            wait_until(lambda: server.metric("requests_waiting") == 1, "it waits")
        wait_until(lambda: server.metric("requests_waiting") == 0, "it is forgotten")
    finally:
        compiler.resume()
    assert ask(client, extra_body={"guided_choice": ["b"]}).choices[0].message.content == "b"


def test_a_compiler_that_was_killed_is_replaced_without_a_restart(client: OpenAI) -> None:
    ask(client, extra_body={"guided_choice": ["first"]})
    (compiler,) = compile_servers()
    compiler.kill()
    wait_until(lambda: has_ended(compiler), "it is dead")
    done = ask(client, extra_body={"guided_choice": ["second"]})
    assert done.choices[0].message.content == "second"


def test_a_schema_of_many_optional_members_is_served(client: OpenAI) -> None:
    properties = {f"p{index}": {"type": "string", "maxLength": 2} for index in range(1200)}
    schema = {"type": "object", "properties": properties}
    text = ask(client, extra_body={"guided_json": schema}, max_tokens=60).choices[0].message.content
    assert text.startswith("{")


def test_json_mode_gives_an_object_when_there_is_room(client: OpenAI) -> None:
    done = ask(client, max_tokens=60, response_format={"type": "json_object"})
    text = done.choices[0].message.content
    assert text.startswith("{")
    if done.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
