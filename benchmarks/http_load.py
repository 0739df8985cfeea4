"""Streams many completions at once and notes when something came; a reader that costs little.

It shares the machine with what it measures, so while answers come it does next to nothing: sockets,
one epoll, a time per piece, no event loop and no parsing. What came is judged when all have ended.
Between two looks it rests a few microseconds for each open stream (a millisecond for 256), since
being woken by each piece would cost the server and the reader more than the piece itself. Times can
therefore be that much too late, never too early. Runs in a child process per load, so that the
caller's interpreter lock is not in the way. Used by benchmarks/{server, token_path}.py.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

LIMIT_SECONDS = 120.0
REST_SECONDS = 4e-6  # for each open stream
_RECEIVE_BYTES = 1 << 18
_LONGEST_BROKEN_BYTES = 1024  # of an answer that is shown because it is not what was expected
_OK = b"HTTP/1.1 200 "
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9a-f]+)\r\n")
_TEXT = b'"text":'
_DONE = b"data: [DONE]\n\n"
_USAGE = re.compile(rb'"completion_tokens":(\d+)')


@dataclass(slots=True)
class LoadResult:
    """The result of a load test. elapsed: from the first connection's start to the last answer's
    end. gap_seconds: between pieces that came for one request, however many tokens a piece has.
    failures: one text per request that was not answered in full."""

    elapsed_seconds: float = 0.0
    ttft_seconds: list[float] = field(default_factory=list)
    gap_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Stream:
    """One request on a connection of its own, and what has come of its answer."""

    def __init__(self, port: int, body: bytes) -> None:
        self.started = time.perf_counter()
        self.socket = socket.socket()
        self.socket.connect(("127.0.0.1", port))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n"
        self.socket.sendall(head % len(body) + body)
        self.socket.setblocking(False)
        self.data = bytearray()
        self.pieces: list[tuple[int, float]] = []  # (bytes so far, seconds)

    def take(self, buffer: bytearray, view: memoryview) -> bool:
        """Takes what is there; whether nothing more will come."""
        try:
            count = self.socket.recv_into(buffer)
        except OSError:  # the server is gone
            count = 0
        self.data += view[:count]
        self.pieces.append((len(self.data), time.perf_counter()))
        ended = not count or self.data.endswith(_END_OF_CHUNKS) or not self.data.startswith(_OK)
        if ended:
            self.socket.close()
        return ended

    def times_of_text(self) -> list[float]:
        """Return when each piece that has some came."""
        found, begin = [], 0
        for end, seconds in self.pieces:
            if self.data.find(_TEXT, begin, end) >= 0:
                found.append(seconds)
            begin = end
        return found

    def failure(self, output_tokens: int) -> str | None:
        """Return what is wrong with the answer, if anything is."""
        body = body_of_chunks(bytes(self.data)) if self.data.startswith(_OK) else None
        count = _USAGE.findall(body) if body is not None and body.endswith(_DONE) else []
        if count == [b"%d" % output_tokens]:
            return None
        return f"{output_tokens} tokens wanted: {bytes(self.data[-_LONGEST_BROKEN_BYTES:])!r}"


def body_of_chunks(answer: bytes) -> bytes | None:
    """The body of a whole answer in chunks; None when it is not one."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    parts: list[bytes] = []
    position = 0
    while (found := _CHUNK_SIZE.match(rest, position)) is not None:
        size = int(found[1], 16)
        begin, end = found.end(), found.end() + size
        if rest[end : end + 2] != b"\r\n":
            return None
        if not size:
            return b"".join(parts) if end + 2 == len(rest) else None
        parts.append(rest[begin:end])
        position = end + 2
    return None


def read_all(port: int, bodies: Sequence[bytes]) -> tuple[list[Stream], float]:
    """The answers, and the seconds from the first connection's start to the last one's end. Raises
    `TimeoutError` when they take longer than LIMIT_SECONDS."""
    buffer = bytearray(_RECEIVE_BYTES)
    view = memoryview(buffer)
    streams: list[Stream] = []
    by_number: dict[int, Stream] = {}
    with select.epoll() as epoll:

        def look(seconds: float) -> None:
            for number, _ in epoll.poll(seconds):
                if by_number[number].take(buffer, view):
                    del by_number[number]

        started = time.perf_counter()
        for body in bodies:
            stream = Stream(port, body)
            streams.append(stream)
            by_number[stream.socket.fileno()] = stream
            epoll.register(stream.socket, select.EPOLLIN)
            look(0.0)
        while by_number:
            left_seconds = started + LIMIT_SECONDS - time.perf_counter()
            if left_seconds < 0:
                raise TimeoutError(f"{len(by_number)} answers not complete in {LIMIT_SECONDS:g} s")
            look(left_seconds)
            time.sleep(REST_SECONDS * len(by_number))
        return streams, time.perf_counter() - started


def load(port: int, bodies: list[str], output_tokens: list[int]) -> LoadResult:
    streams, elapsed_seconds = read_all(port, [body.encode() for body in bodies])
    result = LoadResult(elapsed_seconds)
    for stream, count in zip(streams, output_tokens, strict=True):
        if (failure := stream.failure(count)) is not None:
            result.failures.append(failure)
        times = stream.times_of_text()
        if times:
            result.ttft_seconds.append(times[0] - stream.started)
        result.gap_seconds += [b - a for a, b in itertools.pairwise(times)]
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
    gc.disable()  # what comes is kept to the end
    print(json.dumps(asdict(load(port, bodies, output_tokens))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
