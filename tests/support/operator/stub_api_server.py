"""An API server on a real socket that answers as it is told, and the client's connection to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from atom_operator.cluster.api_connection import ApiConnection

Answer = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class StubApiServer:
    """`url` is where it listens; `seen` the log of requests."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    logins: int = 0
    token: str = "first"

    async def login(self) -> Configuration:
        """Credentials as they are at the moment."""
        self.logins += 1
        return Configuration(host=self.url, api_key={"BearerToken": f"Bearer {self.token}"})

    def connection(self) -> ApiConnection:
        return ApiConnection(self.login)


@contextlib.asynccontextmanager
async def stub_api_server(answer: Answer) -> AsyncIterator[StubApiServer]:
    """`answer` is asked for every request; what it raises breaks the connection."""
    stub = StubApiServer()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        query, headers = dict(request.query), dict(request.headers)
        stub.seen.append(Seen(request.method, request.path, query, headers, body))
        found = answer(request)
        return found if isinstance(found, web.StreamResponse) else await found

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(application)
    await server.start_server()
    stub.url = str(server.make_url("")).rstrip("/")
    try:
        yield stub
    finally:
        await server.close()


def status(code: int, reason: str) -> web.Response:
    """A refusal in the API's own words."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": reason}
    return web.json_response({**body, "code": code}, status=code)


def plain(code: int) -> web.Response:
    """What the API server says of a path that it does not know: no JSON."""
    return web.Response(status=code, text="404 page not found\n")


def in_turn(*answers: web.StreamResponse | Answer) -> Answer:
    """One answer after the other."""
    left = list(answers)

    def answer(request: web.Request) -> Any:
        found = left.pop(0)
        return found if isinstance(found, web.StreamResponse) else found(request)

    return answer


def cut(request: web.Request) -> web.StreamResponse:
    """The connection breaks before there is an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
