"""What a client may send before a body, and how it may speak HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio

from atom.config import Config
from atom.entrypoints.http import http_protocol
from atom.entrypoints.http.http_protocol import MAX_HEAD_BYTES
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually, within

TOO_MANY_BYTES = MAX_HEAD_BYTES + 4096
HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\n"
CHAT = b'{"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4'

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared_rig: AppRig) -> AppRig:
    return shared_rig


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
        [b"GET /" + b"a" * TOO_MANY_BYTES + b" HTTP/1.1\r\n\r\n"],
        [HEAD + b"x: " + b"a" * TOO_MANY_BYTES + b"\r\n\r\n"],
        [HEAD + b"x: aaa\r\n" * (TOO_MANY_BYTES // 8) + b"\r\n"],
        [
            b"GET /?"
            + b"a" * (TOO_MANY_BYTES // 2)
            + HEAD[5:]
            + b"x: "
            + b"a" * (TOO_MANY_BYTES // 2)
            + b"\r\n\r\n"
        ],
    ],
    ids=[
        "one endless header",
        "endless headers",
        "an endless path",
        "a path in one piece",
        "a header in one piece",
        "headers in one piece",
        "path and header together",
    ],
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
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noting(seconds: float, *work: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(seconds, *work, **options)
        if seconds == http_protocol.HEAD_TIMEOUT_SECONDS:
            timers.append(timer)
        return timer

    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_SECONDS", 61.5)
    monkeypatch.setattr(loop, "call_later", noting)
    async with serve_app(config, held=True) as rig:
        chat = asyncio.create_task(rig.chat("ab", max_tokens=2))
        await eventually(lambda: bool(rig.core.added), "the request is in")
        assert timers
        assert all(timer.cancelled() for timer in timers)
        rig.core.release()
        assert (await within(chat, "the answer came")).status_code == 200


# ---- how clients speak --------------------------------------------------------------------------


def chat_request(*headers: str, more: bytes = b"", version: str = "1.1") -> bytes:
    body = CHAT + more + b"}"
    lines = [f"POST /v1/chat/completions HTTP/{version}", "host: x", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def everything_after(rig: AppRig, *pieces: bytes, end_of_ours: bool = False) -> bytes:
    """What the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if end_of_ours:
            writer.write_eof()
        return await within(reader.read(), "the connection was closed")
    finally:
        writer.close()


# What Java's own HTTP client says in every request to http://.
OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB")


@pytest.mark.parametrize("size", [10**6, 150, 1], ids=["at once", "in pieces", "byte by byte"])
async def test_an_offer_of_another_protocol_loses_nothing_of_the_request(
    rig: AppRig, size: int
) -> None:
    last = chat_request("connection: Upgrade, close", "upgrade: h2c", "x-request-id: last")
    sent = chat_request(*OFFER, "x-request-id: first") + last
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    came = await everything_after(rig, *pieces)
    assert came.count(b"HTTP/1.1 200 OK") == 2
    assert came.index(b"x-request-id: first") < came.index(b"x-request-id: last")
    assert came.count(b'"completion_tokens":4') == 2


async def test_an_offer_without_a_body_is_passed_over(rig: AppRig) -> None:
    websocket = HEAD + b"connection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
    assert (await everything_after(rig, websocket)).startswith(b"HTTP/1.1 200 OK")


async def test_a_client_of_http_1_0_gets_no_chunks(rig: AppRig) -> None:
    came = await everything_after(rig, chat_request(more=b', "stream": true', version="1.0"))
    head, _, body = came.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"}\n\ndata: [DONE]\n\n")
    whole = await everything_after(rig, chat_request(version="1.0"))
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "http:// instead of https://"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1, not HTTP/2"),
        (b"hello\r\n\r\n", "no HTTP/1.1 request"),
        (b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\n\r\n", "for proxies"),
        (chat_request("content-length: 3"), "Content-Length"),
        (chat_request("transfer-encoding: chunked"), "Transfer-Encoding"),
    ],
    ids=["TLS", "HTTP/2", "no HTTP", "a proxy's method", "two lengths", "two framings"],
)
async def test_what_is_no_http_is_refused_with_the_reason(
    rig: AppRig, sent: bytes, words: str
) -> None:
    head, _, body = (await everything_after(rig, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert (await rig.chat(max_tokens=2)).status_code == 200


HOSTS = [
    b"x",
    b"",
    b"localhost:8000",
    b"127.0.0.1:80",
    b"[::1]:8000",
    b"[fe80::1%25eth0]",
    b"a_b.c-d",
]
NO_HOSTS = [b"a b", b"a/b", b"user@host", b"::1", b"[::1", b"a:8x", b"a:1:2", b"\xc3\xa4", b'"a"']


def asking(version: bytes, hosts: list[bytes], *more: bytes) -> bytes:
    """A request with these Host headers among others; the connection ends with its answer."""
    lines = [b"GET /health HTTP/" + version, b"x: y", *(b"hOsT: " + host for host in hosts)]
    return b"\r\n".join([*lines, *(more or (b"connection: close",)), b"", b""])


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("offer", [(), (b"connection: upgrade, close", b"upgrade: h2c")])
@pytest.mark.parametrize("same", [True, False])
async def test_a_request_names_one_host(
    rig: AppRig, version: bytes, count: int, offer: tuple[bytes, ...], same: bool
) -> None:
    hosts = [b"x" if same else b"x%d" % number for number in range(count)]
    head, _, body = (await everything_after(rig, asking(version, hosts, *offer))).partition(
        b"\r\n\r\n"
    )
    if count == 1 or (count == 0 and version == b"1.0"):
        assert head.startswith(b"HTTP/1.1 200 OK")
        return
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"connection: close" in head
    message = json.loads(body)["error"]["message"]
    assert (f"{count} Host headers" if count else "no Host header") in message
    assert "send exactly one" in message


@pytest.mark.parametrize("host", HOSTS)
async def test_every_kind_of_host_is_taken(rig: AppRig, host: bytes) -> None:
    came = await everything_after(rig, asking(b"1.1", [host]))
    assert came.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("host", NO_HOSTS)
async def test_what_is_no_host_is_refused(rig: AppRig, host: bytes) -> None:
    came = await everything_after(rig, asking(b"1.1", [host]))
    assert came.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"is no host" in came


async def test_a_second_request_without_a_host_takes_nothing_from_the_first(rig: AppRig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(asking(b"1.1", [b"x"], b"y: z"))
    head = await within(reader.readuntil(b"\r\n\r\n"), "the first answer came")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert await within(reader.readexactly(len(b'{"status":"ok"}')), "and its body")
    body = b'{"a": 1}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 8\r\n\r\n" + body)
    rest = await within(reader.read(), "the connection was closed")
    assert rest.startswith(b"HTTP/1.1 400 Bad Request")
    assert rest.count(b"HTTP/1.1 400") == 1
    writer.close()


# ---- clients that leave -------------------------------------------------------------------------


async def test_a_client_that_ended_its_side_still_reads_what_takes_a_moment(rig: AppRig) -> None:
    came = await everything_after(rig, HEAD + b"\r\n", end_of_ours=True)
    assert came.startswith(b"HTTP/1.1 200 OK")
    assert came.endswith(b'{"status":"ok"}')


async def test_a_client_that_ended_its_side_is_told_that_its_request_is_aborted(
    config: Config,
) -> None:
    async with serve_app(config, held=True) as rig:
        came = await everything_after(rig, chat_request(), end_of_ours=True)
        assert came.startswith(b"HTTP/1.1 499 ")
        assert b"leave it open" in came
        await eventually(lambda: rig.engine.open_requests == 0, "the request was aborted")


async def test_a_client_that_leaves_takes_all_it_has_pipelined_along(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(chat_request() * 3)
        await eventually(lambda: rig.engine.open_requests == 1, "the first one runs")
        writer.transport.abort()
        await eventually(lambda: rig.engine.open_requests == 0, "it was aborted")
        assert len(rig.core.added) == 1  # the others never began


async def test_nothing_is_said_in_the_middle_of_an_answer(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(chat_request(more=b', "stream": true'))
        await within(reader.readuntil(b"data: "), "the answer began")
        writer.write(b"no HTTP\r\n\r\n")
        rest = await within(reader.read(), "the connection was closed")
        writer.close()
        assert b"HTTP/1.1" not in rest
        await eventually(lambda: rig.engine.open_requests == 0, "the request was aborted")
