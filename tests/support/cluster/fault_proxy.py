"""FaultProxy: an API server that misbehaves on demand, in front of a real one.

Plain HTTP for the process under test; upstream it is whoever the kubeconfig says. `on_request`
looks at every request and may have it answered by a fault instead. `down` breaks every connection
and refuses new ones until `up`, as a restart of the API server does. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import enum
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from devcluster.api_reader import reader_of
from tests.support.waiting import HANG_SECONDS

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Of one hop only; lengths are found out anew.
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host"}


class Fault(enum.Enum):
    """What happens to a request instead of being passed on and answered."""

    CONFLICT = 409
    TOO_MANY_REQUESTS = 429
    UNAVAILABLE = 503
    LOST_ANSWER = "it is carried out, and the connection breaks before the answer"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, str]

    @property
    def is_write(self) -> bool:
        return self.method in _WRITES

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class FaultProxy:
    """`log` is every request so far, in order; its callbacks run in the proxy's thread."""

    upstream: str
    context: ssl.SSLContext
    log: list[Seen] = field(default_factory=list)
    on_request: Callable[[Seen], Fault | None] = lambda _: None
    after_write: Callable[[Seen], None] = lambda _: None
    port: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path) -> str:
        """A kubeconfig that leads here."""
        entry = {"name": "proxy"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{**entry, "cluster": {"server": self.url}}],
            "users": [{**entry, "user": {"token": "unused"}}],
            "contexts": [{**entry, "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    def up(self) -> None:
        """Listen, on the same port as before."""
        self._call(self._listen())

    def down(self) -> None:
        """Break every connection and refuse new ones."""
        self._call(self._stop_listening())

    def start(self) -> None:
        self._thread.start()
        self.up()

    def stop(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_SECONDS)
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(HANG_SECONDS)

    async def _listen(self) -> None:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self.context, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout()
            )
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def _stop_listening(self) -> None:
        if self._runner is not None:
            server = self._runner.server
            for connection in list(server.connections) if server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    async def _end(self) -> None:
        await self._stop_listening()
        if self._session is not None:
            await self._session.close()
        # Requests whose client has left: aiohttp ends only those that still have a connection.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path, dict(request.query))
        self.log.append(seen)
        fault = self.on_request(seen)
        if fault is not None and fault is not Fault.LOST_ANSWER:
            return web.json_response(_status(int(fault.value)), status=int(fault.value))
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        headers.pop("Authorization", None)
        async with self._session.request(
            request.method,
            f"{self.upstream}{request.raw_path}",
            data=await request.read() or None,
            headers=headers,
        ) as answer:
            if seen.is_write:
                self.after_write(seen)
            if fault is Fault.LOST_ANSWER:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return await _pass_on(request, answer)


async def _pass_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status)
    for name, value in answer.headers.items():
        if name.lower() not in _HOP or name.lower() == "content-encoding":
            response.headers[name] = value
    with suppress(ConnectionError, aiohttp.ClientError):  # either side may be gone
        await response.prepare(request)
        async for part in answer.content.iter_any():
            await response.write(part)
        await response.write_eof()
    return response


def _status(code: int) -> dict[str, Any]:
    reasons = {409: "Conflict", 429: "TooManyRequests", 503: "ServiceUnavailable"}
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reasons[code],
        "message": f"injected {code}",
    }


@contextmanager
def fault_proxy(kubeconfig: str) -> Iterator[FaultProxy]:
    """In front of the API server of `kubeconfig`, with its credentials."""
    reader = reader_of(kubeconfig)
    assert reader is not None, f"{kubeconfig} has no client certificates"
    proxy = FaultProxy(f"https://{reader.address}", reader.context)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
