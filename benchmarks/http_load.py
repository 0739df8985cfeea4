"""Streams many completions at once and notes when something came; a reader that costs little.

Each request has a connection of its own and a protocol that looks only at what it must: the status
line, whether a piece of the stream has text, and the end. Runs in a child process per load, so that
the caller's interpreter lock is not in the way. Used by benchmarks/server.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import cast

import uvloop

LIMIT_SECONDS = 120.0
_TEXT = b'"text":'
_DONE = b"data: [DONE]"
_USAGE = re.compile(rb'"completion_tokens":(\d+)')
_TAIL_BYTES = 1024  # the last event but one has the usage


@dataclass(slots=True)
class LoadResult:
    """elapsed: from the first connection's start to the last answer's end. gap_seconds: between
    pieces that came for one request, however many tokens a piece has. failures: one text per
    request that was not answered in full."""

    elapsed_seconds: float = 0.0
    ttft_seconds: list[float] = field(default_factory=list)
    gap_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class _Reader(asyncio.Protocol):
    """One request. `ended` is settled with None, or with what was wrong."""

    def __init__(self, body: bytes, output_tokens: int) -> None:
        self._body = body
        self._output_tokens = output_tokens
        self._transport: asyncio.Transport
        self._status = b""
        self._tail = b""
        self.started = 0.0
        self.times: list[float] = []
        self.ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.started = time.perf_counter()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\n"
        self._transport.write(head + b"content-length: %d\r\n\r\n" % len(self._body) + self._body)

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._status = data.split(b"\r\n", 1)[0]
        if _TEXT in data:
            self.times.append(time.perf_counter())
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if _DONE in self._tail:
            self._end(self._judge())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection ended early: {self._status!r} {self._tail!r} {exc}")

    def _judge(self) -> str | None:
        count = _USAGE.findall(self._tail)
        if b" 200 " in self._status and count == [b"%d" % self._output_tokens]:
            return None
        return f"{self._status!r}, {self._output_tokens} tokens wanted: {self._tail!r}"

    def _end(self, failure: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(failure)
        self._transport.close()


def _same(reader: _Reader) -> _Reader:
    return reader


async def _load(port: int, bodies: list[str], output_tokens: list[int]) -> LoadResult:
    loop = asyncio.get_running_loop()
    readers = [
        _Reader(body.encode(), count) for body, count in zip(bodies, output_tokens, strict=True)
    ]
    started = time.perf_counter()
    for reader in readers:
        await loop.create_connection(partial(_same, reader), "127.0.0.1", port)
    async with asyncio.timeout(LIMIT_SECONDS):
        failures = await asyncio.gather(*(reader.ended for reader in readers))
    result = LoadResult(time.perf_counter() - started)
    result.failures = [failure for failure in failures if failure is not None]
    for reader in readers:
        if reader.times:
            result.ttft_seconds.append(reader.times[0] - reader.started)
        result.gap_seconds += [b - a for a, b in zip(reader.times, reader.times[1:], strict=False)]
    return result


def run_load(port: int, bodies: list[str], output_tokens: list[int]) -> LoadResult:
    """Sends all bodies (streaming, with usage) to /v1/completions at once and reads every answer to
    its end; one that has not `output_tokens` tokens is a failure."""
    given = json.dumps([port, bodies, output_tokens])
    command = [sys.executable, "-m", "benchmarks.http_load"]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return LoadResult(**json.loads(done.stdout))


def main() -> int:
    port, bodies, output_tokens = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(_load(port, bodies, output_tokens)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
