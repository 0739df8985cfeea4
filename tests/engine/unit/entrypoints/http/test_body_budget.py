"""Many bodies at once, and bodies full of what nobody asked for, cost bounded memory."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from atom.config import Config
from atom.entrypoints.http.body_budget import SMALL_BODY_BYTES, BodyBudget
from atom.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from atom.errors import RequestError
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually, within

BOUND_BYTES = 1 << 20
HALF = BOUND_BYTES // 2 + 1


def test_bodies_hold_what_has_come_of_them_until_their_end() -> None:
    budget = BodyBudget(BOUND_BYTES)
    with budget.share() as first:
        first.grow(HALF)
        with budget.share() as second:
            second.grow(HALF - 2)
            with pytest.raises(RequestError, match="1 MiB") as refused:
                second.grow(HALF)
        assert refused.value.status == 503
        assert budget.held_bytes == HALF, "what was refused holds nothing any more"
        with budget.share() as second:
            second.grow(BOUND_BYTES - HALF)
    assert budget.held_bytes == 0


def test_small_bodies_are_read_whatever_others_hold() -> None:
    budget = BodyBudget(BOUND_BYTES)
    with budget.share() as large, budget.share() as small:
        large.grow(BOUND_BYTES)
        small.grow(SMALL_BODY_BYTES)
        with pytest.raises(RequestError):
            small.grow(SMALL_BODY_BYTES + 1)


def test_a_budget_of_nothing_bounds_nothing() -> None:
    with BodyBudget(0).share() as share:
        share.grow(1 << 40)


class Upload:
    """A request to /v1/completions whose body comes bit by bit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @staticmethod
    async def begin(rig: AppRig, size_bytes: int) -> Upload:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {size_bytes}\r\n\r\n"
        writer.write(head.encode())
        return Upload(reader, writer)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        line = await within(self._reader.readline(), "an answer came")
        return int(line.split()[1])

    def leave(self) -> None:
        self._writer.transport.abort()


async def test_what_bodies_take_together_is_bounded_and_given_back(config: Config) -> None:
    body = json.dumps({"prompt": "x" * HALF, "max_tokens": 1}).encode()
    async with serve_app(config) as rig:
        rig.state.bodies = BodyBudget(BOUND_BYTES)
        slow, late = [await Upload.begin(rig, len(body)) for _ in range(2)]
        await slow.send(body[:HALF])
        await eventually(lambda: rig.state.bodies.held_bytes == HALF, "the first is being read")
        await late.send(body[:HALF])
        assert await late.status() == 503
        small = await rig.post("/v1/completions", prompt="ab", max_tokens=1)
        assert small.status_code == 200, "small ones go on"
        await slow.send(body[HALF:])
        assert await slow.status() == 400, "complete, and longer than the context"
        again = await rig.client.post("/v1/completions", content=body)
        assert again.json()["error"]["code"] == "context_length_exceeded"
        leaving = await Upload.begin(rig, len(body))
        await leaving.send(body[:HALF])
        await eventually(lambda: rig.state.bodies.held_bytes == HALF, "it is being read")
        leaving.leave()
        await eventually(lambda: rig.state.bodies.held_bytes == 0, "it has left")
        for upload in (slow, late):
            upload.leave()


async def test_a_body_is_let_go_once_its_request_is_queued(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        text = {"prompt": "ab", "max_tokens": 2, "user": "x" * SMALL_BODY_BYTES}
        asking = asyncio.create_task(rig.post("/v1/completions", **text))
        await eventually(lambda: len(rig.core.added) == 1, "the request is in the engine")
        assert rig.state.bodies.held_bytes == 0
        rig.core.release()
        assert (await asking).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": "a"}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
@pytest.mark.parametrize("where", ["at the top", "in a message"])
def test_of_unknown_fields_nothing_is_made(kind: Any, body: dict[str, Any], where: str) -> None:
    unknown = {f"field{number}": number for number in range(100_000)}
    if where == "in a message" and "messages" in body:
        body = {"messages": [body["messages"][0] | unknown]}
    else:
        body = body | unknown
    data = json.dumps(body).encode()
    tracemalloc.start()
    try:
        parsed = kind.model_validate_json(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(data) / 10
    assert not parsed.model_extra
