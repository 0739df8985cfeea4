"""LineRun: answers the lines of a file of requests, so many at once, and passes over those that an
earlier run answered.

Lines are read as they are asked, so that a file may be of any length, and on a thread, so that a
long one does not delay the loop; answers come in the order in which they are complete. Used by
`atom batch` and by the server's stored batches, which differ in how a request is asked and where
its answer is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from atom.entrypoints.http.errors import LEAST_ERROR
from atom.entrypoints.request_lines.batch_lines import BatchRequest, custom_id_of, read_request
from atom.entrypoints.request_lines.on_thread import on_thread
from atom.errors import RequestError

_READ_AHEAD_BYTES = 64 * 1024  # of lines that are read in one call, and one line more


@dataclass(slots=True)
class BatchCounts:
    """Count lines: passed_over, because an earlier run answered them; failed, those answered by an
    error included."""

    answered: int = 0
    failed: int = 0
    passed_over: int = 0


class LineAnswers(Protocol):
    """Writes answers. All methods raise `ConfigError` if they cannot be written."""

    def has(self, custom_id: str) -> bool:
        """Return whether an earlier run answered this request."""
        ...

    def answer(self, custom_id: str, status: int, body: bytes) -> None: ...

    def refuse(self, custom_id: str | None, message: str) -> None: ...


class LineTurns:
    """Bounds the lines that are held at once, by number and bytes, in all runs that share it."""

    def __init__(self, most_open: int, most_bytes: int) -> None:
        """most_bytes: a single line may be longer."""
        self._most_open, self._most_bytes = most_open, most_bytes
        self._open = self._held_bytes = 0
        self._left = asyncio.Condition()

    async def enter(self, size_bytes: int) -> None:
        """Wait for room for one more line."""
        async with self._left:
            await self._left.wait_for(
                lambda: (
                    self._open < self._most_open
                    and (not self._open or self._held_bytes + size_bytes <= self._most_bytes)
                )
            )
            self._open += 1
            self._held_bytes += size_bytes

    async def leave(self, size_bytes: int) -> None:
        async with self._left:
            self._open -= 1
            self._held_bytes -= size_bytes
            self._left.notify_all()


@dataclass(frozen=True, slots=True)
class _InvalidLine:
    custom_id: str | None
    message: str


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that was read. number: in the file, from 1."""

    number: int
    size_bytes: int
    parsed: BatchRequest | _InvalidLine


@dataclass(slots=True)
class LineRun:
    """Answer a file's lines. ask: the HTTP status and the body of a request's answer. told: called
    with the counts after each line. read: parses a line by its number, on a thread; raises
    `RequestError`."""

    ask: Callable[[BatchRequest], Awaitable[tuple[int, bytes]]]
    answers: LineAnswers
    lines: Iterator[tuple[int, bytes]]
    told: Callable[[BatchCounts], None]
    turns: LineTurns
    counts: BatchCounts = field(default_factory=BatchCounts)
    read: Callable[[bytes, int], BatchRequest] = read_request
    _ahead: deque[_Line] = field(default_factory=deque)
    _seen: set[str] = field(default_factory=set)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, at_once: int) -> BatchCounts:
        """Answer all lines. Raises the first error of `ask` or `answers`, which ends the run."""
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(at_once):
                    workers.create_task(self._work())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return self.counts

    async def _work(self) -> None:
        """Answer line after line, until none is left."""
        while True:
            async with self._reading:  # so that few lines alone wait for their turns in memory
                line = await self._next()
                if line is None:
                    return
                await self.turns.enter(line.size_bytes)
            try:
                await self._answer(line)
            finally:
                await self.turns.leave(line.size_bytes)
            self.told(self.counts)

    async def _next(self) -> _Line | None:
        """Return the next line; None if none is left."""
        if not self._ahead:
            self._ahead.extend(await on_thread(self._read_ahead))
        return self._ahead.popleft() if self._ahead else None

    def _read_ahead(self) -> list[_Line]:
        """Read and parse the next lines. Blocking."""
        found: list[_Line] = []
        size_bytes = 0
        while size_bytes < _READ_AHEAD_BYTES and (each := next(self.lines, None)) is not None:
            number, line = each
            parsed: BatchRequest | _InvalidLine
            try:
                parsed = self.read(line, number)
            except RequestError as error:
                parsed = _InvalidLine(custom_id_of(line), str(error))
            found.append(_Line(number, len(line), parsed))
            size_bytes += len(line)
        return found

    async def _answer(self, line: _Line) -> None:
        request = line.parsed
        if isinstance(request, _InvalidLine):
            self.counts.failed += 1
            self.answers.refuse(request.custom_id, request.message)
            return
        if request.custom_id in self._seen:
            self.counts.failed += 1
            message = f"line {line.number}: custom_id {request.custom_id!r} is another line's"
            self.answers.refuse(None, message)
            return
        self._seen.add(request.custom_id)
        if self.answers.has(request.custom_id):
            self.counts.passed_over += 1
            return
        status, body = await self.ask(request)
        self.answers.answer(request.custom_id, status, body)
        if status < LEAST_ERROR:
            self.counts.answered += 1
        else:
            self.counts.failed += 1
