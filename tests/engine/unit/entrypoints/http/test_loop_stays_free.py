"""While a huge body is parsed, or a long conversation rendered, the event loop answers others.

Every door is tried with its own documented example: each piece of work is held on its thread until
another client's request has been answered.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from atom.config import Config
from atom.entrypoints.http.body_turns import HUGE_BODY_BYTES
from atom.entrypoints.http.long_requests import FEW_CHARACTERS, FEW_VALUES, is_long
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.stored_batches import worker
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.service import BatchService
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import HANG_SECONDS, eventually

HUGE = {"padding": "x" * HUGE_BODY_BYTES}
TEMPLATE_DOORS = {
    "/v1/chat/completions": "messages",
    "/v1/chat/completions/render": "messages",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/responses": "input",
    "/v1/responses/input_tokens": "input",
    "/tokenize": "messages",
}


class Held:
    """Work that waits, on a thread of its own, until it is let go."""

    def __init__(self) -> None:
        self._loop_thread = threading.current_thread()
        self._began = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()

    def around(self, work: Callable[..., Any], applies: Callable[..., bool]) -> Callable[..., Any]:
        """Hold the calls of `work` that `applies` is true of."""

        def held(*args: Any, **kwargs: Any) -> Any:
            if applies(*args, **kwargs):
                assert threading.current_thread() is not self._loop_thread, "others would wait"
                self._loop.call_soon_threadsafe(self._began.set)
                assert self._go.wait(HANG_SECONDS)
            return work(*args, **kwargs)

        return held

    async def began(self, sent: asyncio.Task[Any]) -> None:
        """Wait until a request's work is held."""
        waiting = asyncio.create_task(self._began.wait())
        await asyncio.wait([waiting, sent], return_when=asyncio.FIRST_COMPLETED)
        assert self._began.is_set(), sent.result().text

    def let_go(self) -> None:
        self._go.set()


async def other_is_answered_meanwhile(rig: AppRig, held: Held, path: str, fields: Any) -> Any:
    """Send a request whose work is held, and another client's. Returns the first one's answer."""
    sent = asyncio.create_task(rig.client.post(path, json=fields))
    try:
        await held.began(sent)
        assert (await rig.chat("other", max_tokens=1)).status_code == 200
        assert not sent.done()
    finally:
        held.let_go()
    return await sent


async def examples_of(rig: AppRig) -> dict[str, dict[str, Any]]:
    """The documented example of each POST whose body is parsed by a request model."""
    document = (await rig.client.get("/openapi.json")).json()
    found = {}
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        example = content.get("application/json", {}).get("example")
        if example is not None:
            found[path] = example
    return found


@pytest.fixture
async def open_rig(config: Config, tmp_path: Path) -> AsyncIterator[AppRig]:
    """A server on which every route is open to its client."""
    pausing = replace(config, sleep=replace(config.sleep, enabled=True))
    batches = BatchService(BatchOptions(folder=tmp_path))
    async with serve_app(pausing, api_key="sk", batches=batches) as rig:
        rig.client.headers["authorization"] = "Bearer sk"
        yield rig


async def test_a_huge_body_is_parsed_beside_the_loop_at_every_door(
    open_rig: AppRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig
    examples = await examples_of(rig)
    assert {*TEMPLATE_DOORS, "/v1/completions", "/detokenize", "/v1/embeddings"} <= examples.keys()
    parse = BaseModel.model_validate_json.__func__
    for path, example in examples.items():
        held = Held()
        held_parse = held.around(parse, lambda _, data: len(data) > HUGE_BODY_BYTES)
        monkeypatch.setattr(BaseModel, "model_validate_json", classmethod(held_parse))
        answer = await other_is_answered_meanwhile(rig, held, path, {**example, **HUGE})
        assert answer.status_code < 500, (path, answer.text)


async def test_lines_of_a_batch_are_read_beside_the_loop(
    open_rig: AppRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, held, batches = open_rig, Held(), open_rig.batches
    assert batches is not None
    monkeypatch.setattr(worker, "read_request", held.around(worker.read_request, lambda *_: True))
    line = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}
    form = {"data": {"purpose": "batch"}, "files": {"file": ("f", json.dumps(line))}}
    file = (await rig.client.post("/v1/files", **form)).json()["id"]  # type: ignore[arg-type]
    async with batches.running():
        ended = asyncio.create_task(
            eventually(lambda: batches.worker.requests["completed"] == 1, "the line is answered")
        )
        made = await rig.post(
            "/v1/batches",
            input_file_id=file,
            endpoint="/v1/completions",
            completion_window="24h",
        )
        assert made.status_code == 200, made.text
        try:
            await held.began(ended)
            assert (await rig.chat("other", max_tokens=1)).status_code == 200
            assert not ended.done()
        finally:
            held.let_go()
        await ended


async def test_errors_of_a_huge_body_are_those_of_a_small_one(rig: AppRig) -> None:
    for fields in (
        {"prompt": {}},
        {"prompt": "a", "max_tokens": -1},
        {"prompt": "a", "best_of": 2},
    ):
        answers = [await rig.post("/v1/completions", **fields, **more) for more in ({}, HUGE)]
        assert answers[0].json() == answers[1].json()
        assert answers[0].status_code == 400


LONG_TEXT = "a" * (FEW_CHARACTERS + 1)


@pytest.mark.parametrize(("path", "field"), TEMPLATE_DOORS.items())
async def test_a_long_conversation_is_rendered_beside_the_loop(
    rig: AppRig, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    example = (await examples_of(rig))[path]
    example.pop("prompt", None)
    held, processor = Held(), rig.engine.processor
    is_theirs = lambda messages, **_: LONG_TEXT in messages[-1]["content"]  # noqa: E731
    monkeypatch.setattr(processor, "render_chat", held.around(processor.render_chat, is_theirs))
    fields = {**example, field: [{"role": "user", "content": LONG_TEXT}]}
    assert len(json.dumps(fields)) < HUGE_BODY_BYTES
    await other_is_answered_meanwhile(rig, held, path, fields)
    assert rig.engine.open_requests == 0


SLOW_TO_CHECK: dict[str, dict[str, Any]] = {
    "bad words": {"bad_words": [f"word{number}" for number in range(200)]},
    "a schema": {
        "structured_outputs": {
            "json": {
                "type": "object",
                "properties": {f"property {n}": {"type": "string"} for n in range(200)},
            }
        }
    },
}


@pytest.mark.parametrize("slow", SLOW_TO_CHECK.values(), ids=SLOW_TO_CHECK.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_parameters_that_take_long_are_checked_beside_the_loop(
    rig: AppRig, monkeypatch: pytest.MonkeyPatch, path: str, slow: dict[str, Any]
) -> None:
    example = (await examples_of(rig))[path]
    held, inputs = Held(), rig.engine.processor.inputs
    is_slow = lambda params: params.bad_words or params.structured_outputs  # noqa: E731
    monkeypatch.setattr(inputs, "prepare", held.around(inputs.prepare, is_slow))
    fields = {**example, **slow, "max_tokens": 2}
    answer = await other_is_answered_meanwhile(rig, held, path, fields)
    assert answer.status_code == 200, answer.text


def chat(**fields: Any) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "a"}]
    return ChatCompletionRequest.model_validate({"messages": messages, **fields})


def tool(properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


NESTED: Any = {}
for _ in range(FEW_VALUES):
    NESTED = {"type": "object", "properties": {"p": NESTED}}
LONG: dict[str, dict[str, Any]] = {
    "many messages": {"messages": [{"role": "user", "content": "a"}] * FEW_VALUES},
    "a long text": {"messages": [{"role": "user", "content": LONG_TEXT}]},
    "long texts together": {"messages": [{"role": "user", "content": "a" * 1000}] * 20},
    "many parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * FEW_VALUES}]
    },
    "many properties": {"tools": [tool({f"p{n}": {"type": "string"} for n in range(FEW_VALUES)})]},
    "deep properties": {"tools": [tool({"p": NESTED})]},
    "many tools": {"tools": [tool({})] * (FEW_VALUES // 4)},
    "a long argument": {"chat_template_kwargs": {"notes": LONG_TEXT}},
}


@pytest.mark.parametrize("fields", LONG.values(), ids=LONG.keys())
def test_a_conversation_is_long_by_whatever_a_template_may_go_through(
    fields: dict[str, Any],
) -> None:
    assert is_long(chat(**fields))


def test_an_everyday_conversation_is_short() -> None:
    turns = [{"role": role, "content": "a" * 200} for role in ("user", "assistant")] * 10
    assert not is_long(chat(messages=[*turns, turns[0]], tools=[tool({"p": {"type": "string"}})]))
