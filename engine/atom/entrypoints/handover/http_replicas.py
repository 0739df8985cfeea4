"""HttpReplicas: the other replicas of the model behind one URL, a Kubernetes Service's say.

Every request is a connection of its own, so that the Service chooses a replica that is ready for
each. A replica that refuses is no reason to give up: the next may be another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from atom.entrypoints.handover.token_frames import BEAT_SECONDS, PATH, Failure, next_frame
from atom.errors import RequestError
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.relays import ReplicaLostError
from atom.model_engine.request import RequestOutput

_TRIES = 4
_SECONDS_BETWEEN = 0.2
_CONNECT_SECONDS = 2.0
_SILENT_SECONDS = 4 * BEAT_SECONDS
_MOST_ERROR_BYTES = 500


class HttpReplicas:
    def __init__(
        self, url: str, keys: Callable[[], Sequence[bytes]], certificate: str | None = None
    ) -> None:
        """keys: those that count here, which count there as well; none where no key is needed.
        certificate: that replicas of an https URL show, a PEM file; this server's own."""
        self._url = url.rstrip("/")
        self._keys = keys
        self._ssl: ssl.SSLContext | bool = True
        if certificate is not None:
            self._ssl = ssl.create_default_context(cafile=certificate)
            self._ssl.check_hostname = False  # the same file is shown under every name
            self._ssl.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    async def are_there(self) -> bool:
        """Ask the URL for one that is ready."""
        try:
            async with self._session() as session, session.get(f"{self._url}/ready") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    @asynccontextmanager
    async def ask(self, handed: HandedRequest) -> AsyncIterator[AsyncIterator[RequestOutput]]:
        """Let one of them go on with a request. Raises `RequestError` (503) when none takes it,
        with the words of the last that refused, and within `ReplicaLostError`."""
        body = msgspec.msgpack.encode(handed)
        async with self._session() as session:
            response = await self._taken(session, body)
            try:
                yield _outputs(response)
            finally:
                response.close()

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, ssl=self._ssl),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS
            ),
        )

    async def _taken(self, session: aiohttp.ClientSession, body: bytes) -> aiohttp.ClientResponse:
        """Return the response of the first that takes it."""
        words = ""
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_SECONDS_BETWEEN * number)
            try:
                response = await session.post(
                    self._url + PATH, data=body, headers=self._headers(number)
                )
                if response.status == 200:
                    return response
                said = (await response.content.read(_MOST_ERROR_BYTES)).decode(errors="replace")
                words = f"HTTP {response.status}: {said}"
                response.close()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                words = f"{type(error).__name__}: {error}"
        raise RequestError(
            f"the answer could not go on at another replica of {self._url} ({words}); send the "
            f"request again",
            status=503,
        )

    def _headers(self, number: int) -> dict[str, str]:
        """Headers of the next try. A Secret may be changing: another key may be the one."""
        keys = self._keys()
        if not keys:
            return {}
        return {"authorization": f"Bearer {keys[number % len(keys)].decode('latin-1')}"}


async def _outputs(response: aiohttp.ClientResponse) -> AsyncIterator[RequestOutput]:
    while True:
        try:
            frame = await next_frame(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise ReplicaLostError(f"{type(error).__name__}: {error}") from error
        if isinstance(frame, Failure):
            if frame.lost:
                raise ReplicaLostError(frame.message)
            raise RequestError(frame.message, status=frame.status)
        if frame is not None:
            yield frame.output
