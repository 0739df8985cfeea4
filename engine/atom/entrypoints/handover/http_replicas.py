"""HttpReplicas: the other replicas of the model, reached over HTTP.

Every request opens a new connection, so that a Service chooses a ready replica for each. After a
refusal the next replica is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import aiohttp
import msgspec

from atom.entrypoints.handover.places import OnePlace, Place, Places
from atom.entrypoints.handover.replica_session import EXCHANGE_ERRORS, ReplicaSessions
from atom.entrypoints.handover.token_frames import (
    PATH,
    SERVER_HEADER,
    WEIGHTS_HEADER,
    Failure,
    next_frame,
)
from atom.entrypoints.http.errors import ErrorResponse
from atom.errors import RequestError
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.relays import ReplicaLostError, TakenRequest
from atom.model_engine.request import RequestOutput
from atom.model_engine.request_trace import trace_headers

_LEAST_TRIES = 4
_SECONDS_BETWEEN = 0.2
_MOST_ERROR_BYTES = 10_000
_MOST_RETRY_DIGITS = 6
_MOST_WORDS = 500
_MOST_NAME = 253  # of a host
_BAD_SECRET = (401, 403)
# Statuses about the request itself, which every replica would return.
_FINAL = (400, 413, 422)


class HttpReplicas:
    def __init__(self, places: Places, sessions: ReplicaSessions) -> None:
        self._places = places
        self._sessions = sessions
        self._open_at: Counter[Place] = Counter()

    @staticmethod
    def behind(url: str, sessions: ReplicaSessions) -> HttpReplicas:
        """Build the way to those behind one URL, a Kubernetes Service's say."""
        return HttpReplicas(OnePlace(url), sessions)

    async def are_there(self) -> bool:
        """Ask for one that is ready."""
        for place in self._places.in_order(self._open_at):
            try:
                async with (
                    self._sessions.to(place) as session,
                    session.get(f"{place.url}/ready") as response,
                ):
                    if response.status == 200:
                        return True
            except EXCHANGE_ERRORS:
                continue
        return False

    @property
    def open_at(self) -> Mapping[Place, int]:
        """Return the number of open requests of each replica."""
        return self._open_at

    @contextlib.asynccontextmanager
    async def ask(
        self, handed: HandedRequest, first: Place | None = None
    ) -> AsyncIterator[TakenRequest]:
        """Let a replica continue a request. first: is asked before all others. Raises
        `RequestError` if none takes it, with the last one's reason, and `ReplicaLostError` within
        the block."""
        body = msgspec.msgpack.encode(handed)
        place, stack, response = await self._taken(body, first, begun=bool(_tokens(handed)))
        self._open_at[place] += 1
        try:
            async with stack:
                server = response.headers.get(SERVER_HEADER, "")[:_MOST_NAME] or str(place)
                version = response.headers.get(WEIGHTS_HEADER, "")
                yield TakenRequest(_outputs(response), version, server)
        finally:
            response.close()
            self._open_at[place] -= 1

    async def _taken(
        self, body: bytes, first: Place | None, *, begun: bool
    ) -> tuple[Place, contextlib.AsyncExitStack, aiohttp.ClientResponse]:
        """Return the response of the first replica that takes the request, and the stack that
        closes its session. begun: a part of the answer has arrived."""
        words, refusal, number = "no address is known", None, 0
        while number < _LEAST_TRIES:
            if number:
                await asyncio.sleep(_SECONDS_BETWEEN * number)
            asked = number
            for place in self._in_order(first):
                async with contextlib.AsyncExitStack() as stack:
                    session = await stack.enter_async_context(self._sessions.to(place))
                    headers = {**trace_headers(), **self._sessions.headers(number)}
                    try:
                        response = await session.post(place.url + PATH, data=body, headers=headers)
                    except EXCHANGE_ERRORS as error:
                        words, refusal = f"{place}: {type(error).__name__}: {error}", None
                    else:
                        if response.status == 200:
                            return place, stack.pop_all(), response
                        refusal = await _refusal(place, response)
                        words = f"HTTP {response.status}: {refusal}"
                if refusal is not None and refusal.status in _FINAL and not begun:
                    raise refusal
                number += 1
            number += number == asked  # there is no place to ask
        if refusal is not None and not begun:
            raise refusal
        raise RequestError(
            f"the answer could not {'go on' if begun else 'begin'} at any replica ({words}); send "
            f"the request again",
            status=503,
        )

    def _in_order(self, first: Place | None) -> list[Place]:
        """List the places to ask. first: comes before all others, if it is still known."""
        places = list(self._places.in_order(self._open_at))
        return sorted(places, key=lambda place: place != first)


def _tokens(handed: HandedRequest) -> list[int]:
    return handed.request.output_token_ids


async def _refusal(place: Place, response: aiohttp.ClientResponse) -> RequestError:
    """Read the error that a replica answered with, as its client is to hear it."""
    status = response.status
    try:
        data = await response.content.read(_MOST_ERROR_BYTES)
        told = msgspec.json.decode(data, type=ErrorResponse).error
    except (*EXCHANGE_ERRORS, msgspec.MsgspecError) as error:
        return RequestError(f"{place} answered HTTP {status} ({error})"[:_MOST_WORDS], status=503)
    if status in _BAD_SECRET:
        return RequestError(f"{place} refuses this server's secret: {told.message}", status=503)
    code = told.code if isinstance(told.code, str) else None
    return RequestError(
        told.message[:_MOST_WORDS],
        param=told.param,
        status=status,
        code=code,
        retry_after_seconds=_whole_seconds(response.headers.get("retry-after", "")),
    )


def _whole_seconds(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_RETRY_DIGITS
    return int(text) if is_number else None


async def _outputs(response: aiohttp.ClientResponse) -> AsyncIterator[RequestOutput]:
    while True:
        try:
            frame = await next_frame(response.content)
        except (*EXCHANGE_ERRORS, asyncio.IncompleteReadError) as error:
            raise ReplicaLostError(f"{type(error).__name__}: {error}") from error
        if isinstance(frame, Failure):
            if frame.lost:
                raise ReplicaLostError(frame.message)
            raise RequestError(frame.message, status=frame.status)
        if frame is not None:
            yield frame.output
