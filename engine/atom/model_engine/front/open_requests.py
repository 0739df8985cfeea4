"""OpenRequests: the streams that still wait for something, and how long each may.

Every open request has a stream by the engine's number for it; it leaves with its last output, by a
fault, by its time, or because its reader left, and in all cases but the first the engine is told.
Owned by AsyncLLMEngine; belongs to one event loop and knows neither sockets nor text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from atom.errors import RequestError
from atom.model_engine.front.request_stream import ReaderWake, RequestStream
from atom.model_engine.request import RequestOutput


class OpenRequests:
    def __init__(self, abort: Callable[[int], None]) -> None:
        """abort: tells the engine to end a request early."""
        self._abort = abort
        self._streams: dict[int, RequestStream] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._unanswered: set[int] = set()  # without a token yet
        self._idle = asyncio.Event()  # no request is open
        self._idle.set()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def num_unanswered(self) -> int:
        """Requests that wait for their first token."""
        return len(self._unanswered)

    def open(self, number: int, stream: RequestStream) -> None:
        self._streams[number] = stream
        self._unanswered.add(number)
        self._idle.clear()

    def limit_time(self, numbers: Iterable[int], bounds: Iterable[float | None]) -> None:
        """Each fails with status 504 unless it ends within the least of these seconds from now;
        None bounds nothing."""
        seconds = min((bound for bound in bounds if bound is not None), default=None)
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        for number in numbers:
            self._timers[number] = loop.call_later(seconds, self._time_out, number, seconds)

    def _time_out(self, number: int, seconds: float) -> None:
        error = RequestError(
            f"the answer was not complete within {seconds:g} s; ask for fewer tokens or allow more "
            f"time",
            status=504,
            code="timeout",
        )
        self.fail(number, error)

    def deliver(self, outputs: Sequence[tuple[int, RequestOutput]]) -> None:
        """Of one step; those of requests that are no longer open are dropped."""
        wakes: dict[ReaderWake, None] = {}  # in order, each once
        streams, unanswered = self._streams, self._unanswered
        for number, output in outputs:
            stream = streams.get(number)
            if stream is not None:
                stream.put(output)
                wakes[stream.wake] = None
                if unanswered:
                    unanswered.discard(number)
                if output.finished:
                    self._forget(number)
        for wake in wakes:
            wake.notify()

    def fail(self, number: int, error: Exception) -> None:
        """End an open request with `error`, which its reader gets."""
        self._streams[number].fail(error)
        self.leave(number)

    def fail_each(self, numbers: Iterable[int], make_error: Callable[[], Exception]) -> None:
        """End those of these requests that are open, each with an error of its own."""
        for number in self._streams.keys() & set(numbers):
            self.fail(number, make_error())

    def fail_named(self, name: str, make_error: Callable[[], Exception]) -> None:
        """End the open requests of the call of this name."""
        named = [number for number, stream in self._streams.items() if stream.name == name]
        self.fail_each(named, make_error)

    def fail_all(self, make_error: Callable[[], Exception]) -> int:
        """End every open request; how many there were."""
        count = len(self)
        self.fail_each(list(self._streams), make_error)
        return count

    def leave(self, number: int) -> None:
        """Forget a request whose reader is gone, and tell the engine."""
        self._abort(number)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._unanswered.discard(number)
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()
        if not self._streams:
            self._idle.set()

    async def wait_idle(self, timeout_seconds: float) -> None:
        """Until no request is open, but no longer than that."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
