"""HttpWorkers: the workers of a server without an engine, found by their URLs.

Names are resolved again at each look, so that a headless Service's pods come and go. A worker of
another model, or of another protocol version, is named and never asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from atom.entrypoints.handover.divided_requests import PrefillWorkers, RolePlaces
from atom.entrypoints.handover.http_replicas import HttpReplicas
from atom.entrypoints.handover.places import FoundPlaces, Place
from atom.entrypoints.handover.replica_session import EXCHANGE_ERRORS, ReplicaSessions
from atom.entrypoints.handover.token_frames import PATH
from atom.entrypoints.http.errors import ErrorResponse
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.relays import TakenRequest
from atom.model_engine.front.handover.worker_core import NoWorkerError, WorkerFacts
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS

_LOOK_SECONDS = 5.0
_MOST_FACTS_BYTES = 2**20
_ABSENT = (404, 405)


class HttpWorkers(HttpReplicas):
    def __init__(
        self,
        urls: Sequence[str],
        sessions: ReplicaSessions,
        architecture: str,
        least_tokens: int = DEFAULT_LEAST_TOKENS,
    ) -> None:
        """architecture: of the model that all of them have to serve. least_tokens: of a prompt that
        a worker with the role kv_producer computes for another one."""
        self._found = FoundPlaces(urls)
        self._architecture = architecture
        self._looks = 0
        self._answering = RolePlaces(self._found, producers=False)
        self._producers = RolePlaces(self._found, producers=True)
        prefill = HttpReplicas(self._producers, sessions)
        self._prefill = PrefillWorkers(prefill, self._producers, least_tokens)
        super().__init__(self._answering, sessions)

    @contextlib.asynccontextmanager
    async def ask(
        self, handed: HandedRequest, first: Place | None = None
    ) -> AsyncIterator[TakenRequest]:
        """Let a worker answer a request, perhaps after another one has computed its prompt. Raises
        as `HttpReplicas.ask`."""
        place = first or next(iter(self._answering.in_order(self._open_at)), None)
        if place is not None:
            leg = await self._prefill.leg_for(handed, place, self._answering)
            if leg is not None:
                request = msgspec.structs.replace(handed.request, kv_transfer=leg)
                handed = msgspec.structs.replace(handed, request=request)
        async with super().ask(handed, place) as taken:
            yield taken

    async def look(self) -> WorkerFacts:
        """Find the workers that take requests; return the facts of the first. Raises
        `NoWorkerError`."""
        self._looks += 1
        trouble = await self._found.resolve()
        told = await asyncio.gather(*map(self._facts, self._found.found))
        serving = {
            place: facts
            for place, facts in zip(self._found.found, told, strict=True)
            if isinstance(facts, WorkerFacts)
        }
        self._found.note_serving(list(serving))
        roles = {place: facts.kv_role for place, facts in serving.items()}
        self._answering.roles = self._producers.roles = roles
        layouts = {place: facts.report.kv_layout for place, facts in serving.items()}
        self._answering.layouts = self._producers.layouts = layouts
        for facts in serving.values():
            return facts
        reasons = [trouble] * bool(trouble) + [each for each in told if isinstance(each, str)]
        raise NoWorkerError("; ".join(reasons))

    async def _facts(self, place: Place) -> WorkerFacts | str:
        """Return the facts of a worker, or the reason why it takes no requests."""
        try:
            async with (
                self._sessions.to(place, _LOOK_SECONDS) as session,
                session.get(
                    place.url + PATH, headers=self._sessions.headers(self._looks)
                ) as response,
            ):
                data = await response.content.read(_MOST_FACTS_BYTES)
                status = response.status
        except EXCHANGE_ERRORS as error:
            return f"{place}: {type(error).__name__}: {error}"
        try:
            if status == 200:
                return self._fitting(place, msgspec.msgpack.decode(data, type=WorkerFacts))
            if status in _ABSENT:
                return (
                    f"{place}: no server of this version that takes answers over; run the same one "
                    f"there, with the same --handover-secret-file"
                )
            return f"{place}: {msgspec.json.decode(data, type=ErrorResponse).error.message}"
        except msgspec.MsgspecError as error:
            return f"{place}: HTTP {status}, no answer of this version's ({error})"

    def _fitting(self, place: Place, facts: WorkerFacts) -> WorkerFacts | str:
        served = facts.report.architecture
        if served == self._architecture:
            return facts
        return f"{place}: serves a {served}, and this is to be a {self._architecture}"
