"""Relays: answers that other replicas continue, delivered as the steps of a core.

A relay asks a replica for the rest of an answer and delivers its tokens. If the replica is lost it
asks another one, after the received tokens; but a request may be the cause of the loss, so only one
loss is allowed. Knows nothing of how replicas are reached. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from atom.errors import RequestError
from atom.model_engine.front.answer_so_far import AnswerSoFar
from atom.model_engine.front.handover.handed_request import HandedRequest, step_of
from atom.model_engine.request import AnswerMove, RequestOutput
from atom.model_engine.wire.engine_protocol import StreamBody, aborted_row

logger = logging.getLogger(__name__)


class ReplicaLostError(Exception):
    """A replica has ended in the middle of an answer, or cannot be reached any more."""


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """Hold the stream of a request that a replica took. weights_version: of the weights that
    compute it; server: the replica's name."""

    outputs: AsyncIterator[RequestOutput]
    weights_version: str
    server: str = ""


class Replicas(Protocol):
    """The other replicas of the model, one of which answers at a time."""

    async def are_there(self) -> bool:
        """Ask whether any replica takes requests now."""

    def ask(self, handed: HandedRequest) -> AbstractAsyncContextManager[TakenRequest]:
        """Let a replica continue a request: the context yields its outputs. Raises `RequestError`
        if none takes it, and `ReplicaLostError` within the context."""


class Relays:
    """Holds the open relays, by the number under which their requests are known here."""

    def __init__(
        self,
        replicas: Replicas,
        deliver: Callable[[StreamBody], None],
        fail: Callable[[int, Exception], None],
        went_on: Callable[[], None],
        moved: Callable[[int, AnswerMove], None],
    ) -> None:
        """deliver: takes a relayed step, as from a core. fail: ends a request with an error.
        went_on: called for each answer that continues after a lost replica; moved: with each
        request whose answer another server continues."""
        self._replicas = replicas
        self._deliver = deliver
        self._fail = fail
        self._went_on = went_on
        self._moved = moved
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def has(self, number: int) -> bool:
        return number in self._tasks

    def begin(self, handed: HandedRequest, server: str = "") -> asyncio.Future[None]:
        """Start a relay. server: that computed the answer so far, if any did. The returned future
        is done once a replica continues the request, or its client has left. It has a
        `RequestError` if no replica does; then no relay is left."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._relay(handed, taken, server))
        self._tasks[handed.request.id] = task
        # Of a task that is cancelled before its first turn nothing else runs.
        task.add_done_callback(lambda _: None if taken.done() else taken.set_result(None))
        return taken

    def abort(self, numbers: Sequence[int]) -> list[int]:
        """End the relays of these requests, each with a final row as from a core; return the
        requests without a relay here."""
        others = []
        for number in numbers:
            task = self._tasks.pop(number, None)
            if task is None:
                others.append(number)
                continue
            task.cancel()
            # Not within the call: it may come from within a delivery.
            end = StreamBody(b"", b"", [aborted_row(number)])
            asyncio.get_running_loop().call_soon(self._deliver, end)
        return others

    def close(self) -> None:
        """End all of them without a word."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _relay(self, handed: HandedRequest, taken: asyncio.Future[None], server: str) -> None:
        number, so_far = handed.request.id, AnswerSoFar(handed.request)

        def note_taken(by: str) -> None:
            nonlocal server
            if not taken.done():
                taken.set_result(None)
            if server and by:
                self._moved(number, AnswerMove(server, by, len(so_far.tokens)))
            server = by

        try:
            while (version := await self._follow(handed, so_far, note_taken)) is not None:
                if not so_far.survives():
                    raise RequestError(
                        "two engines ended while they computed this answer", status=503
                    )
                rest = so_far.request(number, tells_prompt=not so_far.tokens)
                handed = msgspec.structs.replace(handed, request=rest, weights_version=version)
                self._went_on()
        except Exception as error:
            if not taken.done():
                taken.set_exception(error)
            else:
                self._fail(number, error)
        finally:
            self._tasks.pop(number, None)

    async def _follow(
        self, handed: HandedRequest, so_far: AnswerSoFar, note_taken: Callable[[str], None]
    ) -> str | None:
        """Deliver and record one replica's outputs. note_taken: called with its name. Return None
        at the answer's end, else the version of the weights that the rest needs."""
        version = handed.weights_version
        try:
            async with self._replicas.ask(handed) as told:
                note_taken(told.server)
                async for output in told.outputs:
                    version = version or told.weights_version  # of the first with an output
                    so_far.add(output.output_tokens)
                    self._deliver(step_of(handed.request.id, output))
                    if output.finished:
                        return None
        except ReplicaLostError as error:
            logger.warning("a replica was lost while it computed an answer: %s", error)
        return version
