"""CoreClient: a CoreManager with real engine processes, and its events in a queue.

For tests of what travels between processes; no text, no HTTP.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from typing import Any, TypeVar

import psutil

from atom.config import Config
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreEvent, CoreFailed
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    FinishedRow,
    StreamBody,
    UtilityResponseBody,
    first_id,
)
from atom.sampling_params import SamplingParams
from tests.support.waiting import HANG_SECONDS

Event = TypeVar("Event", bound=CoreEvent)


class CoreClient:
    def __init__(self, config: Config, **options: Any) -> None:
        self.events: queue.SimpleQueue[CoreEvent] = queue.SimpleQueue()
        self.manager = CoreManager(config, self.events.put, **options)
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, FinishedRow] = {}
        self._next_id = first_id(self.manager.address.client)
        self._config = config
        self.report: EngineReport

    def start(self) -> CoreClient:
        self.manager.start()
        return self

    def wait_ready(self) -> EngineReport:
        self.report = self.next_of(EngineReport)
        return self.report

    def next_of(self, kind: type[Event]) -> Event:
        """The next event of this kind; others before it are taken in, a failure is an error."""
        while True:
            event = self.events.get(timeout=HANG_SECONDS)
            if isinstance(event, StreamBody):
                self._take(event)
            if isinstance(event, kind):
                return event
            assert not isinstance(event, CoreFailed), event.message

    def _take(self, body: StreamBody) -> None:
        for number, tokens in body.rows():
            self.tokens.setdefault(number, []).extend(tokens)
        for row in body.finished:
            self.finished[row.request_id] = row

    def add(self, *prompts: list[int], max_tokens: int = 8, **params: Any) -> list[int]:
        """Greedy requests, all in one message per rank; their ids."""
        settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens, **params}
        requests = []
        for prompt in prompts:
            requests.append(
                Request(
                    id=self._next_id,
                    prompt_token_ids=prompt,
                    params=SamplingParams(**settings),
                    max_total_tokens=len(prompt) + max_tokens,
                    arrive_time=0.0,
                )
            )
            self._next_id += 1
        self.manager.add_requests(requests)
        return [request.id for request in requests]

    def wait_first_token(self, number: int) -> None:
        while number not in self.tokens:
            self.next_of(StreamBody)

    def wait_finished(self, *numbers: int) -> list[list[int]]:
        """The requests' tokens once all have ended."""
        while not all(number in self.finished for number in numbers):
            self.next_of(StreamBody)
        return [self.tokens.get(number, []) for number in numbers]

    def answer(self, prompt: list[int], **params: Any) -> list[int]:
        """The tokens of one request, from its first to its last."""
        (tokens,) = self.wait_finished(*self.add(prompt, **params))
        return tokens

    def call(self, method: str, *args: Any) -> UtilityResponseBody:
        self._next_id += 1
        self.manager.call_utility(self._next_id, method, args)
        return self.next_of(UtilityResponseBody)

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(number) for number in self.manager.process_ids]

    def assert_well(self) -> None:
        """The engine answers a normal request on every rank, and afterwards all blocks are free."""
        ranks = self._config.parallel.data_parallel_size
        numbers = self.add(*[[5, 6, 7]] * ranks, max_tokens=4)
        answers = self.wait_finished(*numbers)
        assert all(len(tokens) == 4 for tokens in answers)
        checked = self.call("check_integrity")
        assert checked.error is None
        assert checked.result == [0] * ranks, "blocks still held, by rank"


@contextlib.contextmanager
def core_client(config: Config, **options: Any) -> Iterator[CoreClient]:
    """Ready; its processes are gone afterwards."""
    client = CoreClient(config, **options)
    try:
        client.start().wait_ready()
        yield client
    finally:
        client.manager.shutdown()
