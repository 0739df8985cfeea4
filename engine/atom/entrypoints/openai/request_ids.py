"""X-Request-Id: the caller's name of a request on every answer, or a new one if it gave none.

Pure ASGI. An id that could not stand in a header or a log line as it is gets replaced, not refused.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIds:
    """Middleware: handlers find the id with `request_id_of`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_named)


def request_id_of(http: Request) -> str:
    found: str = http.state.request_id
    return found
