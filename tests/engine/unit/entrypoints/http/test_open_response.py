"""A response's pieces written past uvicorn's messages are the bytes that uvicorn would write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from atom.entrypoints.http.http_protocol import BoundedHttpProtocol
from atom.entrypoints.http.open_response import OpenResponse, open_response_of

GET = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}


class Wire(asyncio.Transport):
    """What a connection has written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reads = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Exchange:
    """A connection whose requests are answered by the test."""

    def __init__(self, request: bytes = GET) -> None:
        self.responses: list[OpenResponse] = []
        self.sends: list[Callable[[Any], Any]] = []
        self.wire = Wire()
        config = uvicorn.Config(self._app, interface="asgi3", log_config=None, access_log=False)
        self.protocol = BoundedHttpProtocol(config, ServerState(), {})
        self.protocol.connection_made(self.wire)
        self.protocol.data_received(request)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        found = open_response_of(scope)
        assert found is not None
        self.responses.append(found)
        self.sends.append(send)
        await asyncio.Event().wait()

    async def started(self) -> OpenResponse:
        await asyncio.sleep(0)
        await self.sends[0](START)
        return self.responses[0]


def body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_piece_is_what_uvicorn_writes_for_the_same_message() -> None:
    exchange = Exchange()
    response = await exchange.started()
    for piece in (b"a", b"data: {}\n\n" * 1000):
        await exchange.sends[0](body(piece, more=True))
        by_uvicorn = exchange.wire.written.pop()
        assert response.write_piece(piece)
        assert exchange.wire.written.pop() == by_uvicorn


async def test_nothing_is_written_before_the_start_nor_behind_the_end() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    assert not exchange.responses[0].write_piece(b"a")
    response = await exchange.started()
    await exchange.sends[0](body(b"b", more=False))
    written = len(exchange.wire.written)
    assert not response.write_piece(b"c")
    assert len(exchange.wire.written) == written


async def test_a_body_of_announced_length_goes_the_ordinary_way() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    await exchange.sends[0]({**START, "headers": [(b"content-length", b"1")]})
    assert not exchange.responses[0].write_piece(b"a")


async def test_a_reader_without_room_is_waited_for_in_the_ordinary_way() -> None:
    exchange = Exchange()
    response = await exchange.started()
    exchange.protocol.pause_writing()
    assert not response.write_piece(b"a")
    exchange.protocol.resume_writing()
    assert response.write_piece(b"a")


async def test_a_client_that_leaves_is_told_of_once_and_gets_nothing_more() -> None:
    exchange = Exchange()
    response = await exchange.started()
    told: list[int] = []
    response.when_lost(lambda: told.append(1))
    exchange.protocol.connection_lost(None)
    assert told == [1]
    assert not response.write_piece(b"a")


async def test_a_client_that_left_before_is_told_of_at_once() -> None:
    exchange = Exchange()
    response = await exchange.started()
    exchange.protocol.connection_lost(None)
    told: list[int] = []
    response.when_lost(lambda: told.append(1))
    assert told == [1]


async def test_a_connection_is_read_while_somebody_wants_to_know_of_its_end() -> None:
    exchange = Exchange()
    response = await exchange.started()
    exchange.protocol.flow.pause_reading()  # as behind a large body
    response.when_lost(lambda: None)
    assert exchange.wire.reads


async def test_the_end_of_a_connection_with_two_requests_reaches_the_first() -> None:
    exchange = Exchange(GET + GET)
    response = await exchange.started()
    told: list[int] = []
    response.when_lost(lambda: told.append(1))
    exchange.protocol.connection_lost(None)
    assert told == [1]
