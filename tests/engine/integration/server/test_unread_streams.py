"""Streams that nobody reads do not keep the engine's places from others, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atom.config import EngineOptions, build_config
from atom.model_engine.front.request_stream import ReaderLimits, reader_limits
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.waiting import HANG_SECONDS, eventually

SLOTS = 4
CONTEXT = 16_384  # far more than the system's buffers take of an answer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, layers=1, max_position_embeddings=CONTEXT)


@contextlib.asynccontextmanager
async def rig_of(checkpoint: Path, limits: ReaderLimits | None) -> AsyncIterator[HttpRig]:
    options = {"served_model_name": "tiny", "device": "cpu", "max_num_seqs": SLOTS}
    config = build_config(EngineOptions.of(model=str(checkpoint), num_kv_blocks=4200, **options))
    async with serve_model(config, reader_limits=limits) as rig:
        yield rig


class Unread:
    """A stream whose client takes nothing of it until `rest`."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def ask(self, port: int, **fields: Any) -> None:
        body = json.dumps({"prompt": "x", "stream": True, "ignore_eos": True, **fields}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(body)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, head + b"connection: close\r\n\r\n" + body)

    async def until(self, words: bytes) -> None:
        """Read until they have come."""
        loop, found = asyncio.get_running_loop(), b""
        while words not in found:
            part = await loop.sock_recv(self._socket, 1 << 16)
            assert part, "the stream ended without them"
            found = found[-len(words) :] + part

    def close(self) -> None:
        self._socket.close()


async def open_unread(rig: HttpRig, count: int, **fields: Any) -> list[Unread]:
    streams = [Unread() for _ in range(count)]
    for stream in streams:
        await stream.ask(rig.port, **fields)
    await eventually(lambda: rig.engine.open_requests == count, "the streams are open")
    return streams


async def one_succeeds(tasks: list[asyncio.Task[None]]) -> bool:
    """Wait for the first that does; others may fail before it, as a stream does that was read to
    its end."""
    pending = set(tasks)
    async with asyncio.timeout(HANG_SECONDS):
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is None for task in done):
                return True
    return False


async def test_unread_streams_in_every_place_make_room_for_a_neighbour(checkpoint: Path) -> None:
    limits = ReaderLimits(seconds=1e9, contended_seconds=0.0)
    async with rig_of(checkpoint, limits) as rig:
        streams = await open_unread(rig, SLOTS, max_tokens=CONTEXT - 8)
        answer = await rig.post("/v1/completions", prompt="me", max_tokens=1)
        assert answer.status_code == 200
        assert rig.engine.open_requests < SLOTS, "one at least was let go"
        reading = [asyncio.create_task(stream.until(b"slow_reader")) for stream in streams]
        assert await one_succeeds(reading), "it is told"
        for task, stream in zip(reading, streams, strict=True):
            task.cancel()
            stream.close()
        await asyncio.gather(*reading, return_exceptions=True)
        await eventually(lambda: rig.engine.open_requests == 0, "nothing is open")
        await rig.assert_well()


async def test_a_stream_that_is_read_keeps_its_place_while_others_wait(checkpoint: Path) -> None:
    async with rig_of(checkpoint, reader_limits(60.0)) as rig:
        asked = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
        crowd = [rig.events("/v1/completions", **asked) for _ in range(3 * SLOTS)]
        for events in await asyncio.gather(*crowd):
            assert events[-1] == "[DONE]"
            assert not any("error" in event for event in events)
