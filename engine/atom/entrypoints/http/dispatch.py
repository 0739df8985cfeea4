"""The whole HTTP application: requests that generate go straight to their endpoints, every other to
FastAPI, all of them through the same layers.

FastAPI's and Starlette's own layers and routing cost a generating request more than its parsing,
without any benefit: our code reads bodies, shapes errors and sends answers. The API document still
takes its description of these routes from FastAPI (generation.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from atom.entrypoints.http.errors import response_for
from atom.entrypoints.http.response_headers import request_id_of
from atom.errors import AtomError

logger = logging.getLogger(__name__)


def response_for_fault(http: Request, error: Exception) -> Response:
    """Answer an exception that is a fault of ours, and log it with the request's id."""
    logger.error("request %s failed by a fault of the server", request_id_of(http))
    return response_for(error)


class Dispatch:
    def __init__(self, others: ASGIApp, posts: Mapping[str, ASGIApp]) -> None:
        """posts: the application that answers POST, by path."""
        self._others = others
        self._posts = posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._others
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._posts.get(scope["path"], endpoint)
        await endpoint(scope, receive, send)


class Endpoint:
    """A handler of requests as an ASGI application; its errors get the API's shape."""

    def __init__(self, handle: Callable[[Request], Awaitable[Response]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        try:
            response = await self._handle(http)
        except AtomError as error:
            response = response_for(error)
        except Exception as error:
            await response_for_fault(http, error)(scope, receive, send)
            raise  # the server logs where it happened
        await response(scope, receive, send)
