"""Engines that compute no further than their servers have told on.

A test that kills something in the middle of an answer has to be there before its end. An engine
that runs freely may give all of a tiny model's tokens while a busy machine lets neither its server
nor the test have a core: then there is nothing left to kill. Within `paced` engines stand still,
and compute for a moment at a time until what the test waits for is so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from tests.support.processes import has_ended
from tests.support.server.open_stream import OpenStream
from tests.support.server.server_process import ServerProcess
from tests.support.server.streamed_answers import Ask, StreamedAnswers
from tests.support.waiting import wait_until

_TURN_CPU_SECONDS = 0.02  # some ten steps of a tiny model
_TURN_SECONDS = 0.2  # of an engine that has nothing to compute


@dataclass
class PacedEngines:
    """The engine processes of servers, which are suspended but in a turn of `run_until`."""

    servers: Sequence[ServerProcess]
    engines: list[psutil.Process]

    def run_until(self, condition: Callable[[], bool], what: str) -> None:
        """Give turns until it is so. Its servers have told on all that the engines computed."""

        def so() -> bool:
            if not condition():
                self._turn()
            return condition()

        wait_until(so, what)

    def _turn(self) -> None:
        ends, used = time.monotonic() + _TURN_SECONDS, self._cpu_seconds()
        self.resume()
        wait_until(
            lambda: self._cpu_seconds() - used > _TURN_CPU_SECONDS or time.monotonic() > ends,
            "the turn ends",
        )
        for engine in self._living():
            engine.suspend()
        for server in self.servers:
            server.get("/metrics")  # answered by a process that has read its engines meanwhile

    def resume(self) -> None:
        for engine in self._living():
            engine.resume()

    def _living(self) -> list[psutil.Process]:
        return [engine for engine in self.engines if not has_ended(engine)]

    def _cpu_seconds(self) -> float:
        return sum(sum(engine.cpu_times()[:2]) for engine in self._living())

    def begin(self, server: ServerProcess, tokens: int, *prompts: str) -> list[OpenStream]:
        """Open a stream of so many tokens for each prompt. Each has begun, and none has ended."""
        streams = [
            OpenStream(server, wait=False, prompt=prompt, max_tokens=tokens) for prompt in prompts
        ]
        self.run_until(lambda: all(s.begun.is_set() for s in streams), "the streams have begun")
        assert not any(stream.has_ended for stream in streams)
        return streams

    def begin_asked(
        self, server: ServerProcess, asked: Sequence[Ask], events: int = 3
    ) -> StreamedAnswers:
        """Ask for all of these. Each has so many events, or all of its own."""
        streams = StreamedAnswers(server.url, asked)
        self.run_until(lambda: streams.have_begun(events), "the streams have begun")
        return streams


@contextlib.contextmanager
def paced(*servers: ServerProcess) -> Iterator[PacedEngines]:
    """Within, the engines of these servers compute in turns; behind it they run freely again."""
    found = [engine for server in servers for engine in server.engine_processes()]
    engines = PacedEngines(servers, found)
    for engine in found:
        engine.suspend()
    try:
        yield engines
    finally:
        engines.resume()
