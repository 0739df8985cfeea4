"""WorkerCore: a core whose engines are other servers of the model, its workers.

Every request is handed to a worker from its beginning, and its tokens return as the steps of a
core. A worker that ends without notice breaks no answer: the request moves to another one, after
the received tokens. Knows nothing of how workers are reached. A CorePort; belongs to the event loop
of AsyncLLMEngine, except `shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from atom.errors import RequestError
from atom.model_engine.control import LoadLora, UnloadLora
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.handover.relays import Relays, Replicas
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import (
    AnswerMoved,
    AnswerWentOn,
    CoreEvent,
    CoreReached,
    CoreUnreachable,
    RequestFailed,
    WeightsAre,
)
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    ProgressBody,
    UtilityResponseBody,
)

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_LOOKS_IN_VAIN = 2  # before reporting that none answers: a Service may still list an ended one
_NAMES_ALONE = frozenset({LoadLora.name, UnloadLora.name})  # the workers themselves load them


class WorkerFacts(msgspec.Struct, frozen=True):
    """Hold a worker's description of itself. weights_version: of the weights for requests that
    begin now. kv_role: in the exchange of KV pages; empty without one."""

    report: EngineReport
    weights_version: str
    kv_role: str = ""


class NoWorkerError(Exception):
    """Report that no worker takes requests now; the message has the reason."""


class Workers(Replicas, Protocol):
    """The servers that compute."""

    async def look(self) -> WorkerFacts:
        """Find the workers that take requests; return the facts of one. Raises `NoWorkerError`."""


class WorkerCore:
    def __init__(self, workers: Workers, on_event: Callable[[CoreEvent], None]) -> None:
        self._workers = workers
        self._on_event = on_event
        self._relays = Relays(
            workers,
            on_event,
            self._fail,
            lambda: on_event(AnswerWentOn()),
            lambda number, move: on_event(AnswerMoved(number, move)),
        )
        self._sender = uuid.uuid4().hex
        self._version = ANY_WEIGHTS
        self._began = False
        self._reached = False
        self._in_vain = 0
        self._loop: asyncio.AbstractEventLoop
        self._watching: asyncio.Task[None]

    def start(self) -> None:
        """Begin to look for workers; the first that serves makes the engine ready."""
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.create_task(self._watch())

    def add_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            handed = HandedRequest(request, f"{self._sender}-{request.id}", ANY_WEIGHTS)
            self._relays.begin(handed).add_done_callback(partial(self._note_taken, request.id))

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        self._relays.abort(request_ids)

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        """Answer a utility call by name alone. Raises `RequestError` (501) for calls that need an
        engine."""
        if method not in _NAMES_ALONE:
            raise RequestError(
                f"{method}: no engine runs here, and each of the --worker-urls has its own; ask "
                f"these servers",
                status=501,
            )
        self._on_event(UtilityResponseBody(call_id, None, [None]))

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """End the relays without a word; workers see their ends."""
        self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._watching.cancel()
        self._relays.close()

    def _note_taken(self, number: int, taken: asyncio.Future[None]) -> None:
        error = taken.exception()
        if isinstance(error, Exception):
            self._fail(number, error)

    def _fail(self, number: int, error: Exception) -> None:
        self._on_event(RequestFailed(number, error))

    # ---- reachable workers --------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                self._see(await self._workers.look())
            except NoWorkerError as error:
                self._miss(str(error))
            await asyncio.sleep(LOOK_SECONDS)

    def _see(self, facts: WorkerFacts) -> None:
        self._in_vain = 0
        if facts.weights_version != self._version:
            self._version = facts.weights_version
            self._on_event(WeightsAre(self._version))
        if not self._began:
            self._on_event(facts.report)
        elif not self._reached:
            self._on_event(CoreReached())
        self._began = self._reached = True

    def _miss(self, reason: str) -> None:
        self._in_vain += 1
        if not self._began:
            self._on_event(ProgressBody(f"waiting for a worker ({reason})", 0.0))
        elif self._reached and self._in_vain >= _LOOKS_IN_VAIN:
            self._reached = False
            self._on_event(CoreUnreachable(reason))
