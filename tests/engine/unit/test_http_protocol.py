"""What a client may send before a body."""

from __future__ import annotations

import asyncio
import json

import pytest

from atom.config import Config
from atom.entrypoints import http_protocol
from atom.entrypoints.http_protocol import MAX_HEAD_BYTES
from tests.support.http_app import AppRig, serve_app
from tests.support.waiting import within

TOO_MANY_BYTES = MAX_HEAD_BYTES + 4096
HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\n"


async def status_after(rig: AppRig, *pieces: bytes) -> int:
    """Of the first answer on a connection; the server may close before everything is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        for piece in pieces:
            writer.write(piece)
        line = await within(reader.readline(), "an answer came")
        head = await within(reader.readuntil(b"\r\n\r\n"), "its headers came")
        if b"200" not in line:
            assert b"connection: close" in head
            body = await within(reader.read(), "the connection was closed")
            assert json.loads(body)["error"]["message"]
        return int(line.split()[1])
    finally:
        writer.close()


async def test_headers_of_a_usual_size_are_read_however_they_come(rig: AppRig) -> None:
    value = b"a" * (MAX_HEAD_BYTES // 2)
    assert await status_after(rig, HEAD, b"x: " + value, b"\r\n", b"\r\n") == 200


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD, b"x: ", b"a" * TOO_MANY_BYTES],
        [HEAD, b"x: aaa\r\n" * (TOO_MANY_BYTES // 8)],
        [b"GET /", b"a" * TOO_MANY_BYTES],
    ],
    ids=["one endless header", "endless headers", "an endless path"],
)
async def test_an_endless_head_is_refused_while_it_comes(rig: AppRig, pieces: list[bytes]) -> None:
    assert await status_after(rig, *pieces) == 431
    assert (await rig.chat(max_tokens=2)).status_code == 200


@pytest.mark.parametrize("begun", [b"", HEAD], ids=["nothing", "a part of a head"])
async def test_a_client_that_never_asks_is_let_go(
    config: Config, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_SECONDS", 0.05)
    async with serve_app(config) as rig:
        assert await status_after(rig, begun) == 408


async def test_the_time_for_a_head_is_not_the_answers(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_SECONDS", 0.05)
    async with serve_app(config, held=True) as rig:
        chat = asyncio.create_task(rig.chat("ab", max_tokens=2))
        await asyncio.sleep(0.2)
        rig.core.release()
        assert (await within(chat, "the answer came")).status_code == 200
