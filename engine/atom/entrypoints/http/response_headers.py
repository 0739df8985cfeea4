"""Headers of every answer: X-Request-Id, X-Ignored-Fields if fields of the request are unknown,
X-Atom-Kv-Transfer if another engine computed its prompt, and Connection: close once the server is
ending.

The id is the caller's name of the request, or a new one if it gave none; an id that does not fit a
header or a log line is replaced, not refused. A client that keeps its connection would continue to
ask a server that no longer takes requests; a new connection reaches a server that does. Pure ASGI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID_HEADER = "x-request-id"
IGNORED_HEADER = "x-ignored-fields"
TRANSFER_HEADER = "x-atom-kv-transfer"
_ID_NAME = ID_HEADER.encode()
_UNSAFE = re.compile(r"[^A-Za-z0-9._\[\]-]")
_LONGEST_NAME = 64
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class ResponseHeaders:
    """Middleware: handlers find the id with `request_id_of`."""

    def __init__(self, app: ASGIApp, is_ending: Callable[[], bool]) -> None:
        self._app = app
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header_of(scope, ID_HEADER) or ""
        request_id = given if _SAFE_ID.fullmatch(given) else token_hex(16)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["send_body"] = send

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (_ID_NAME, request_id.encode())]
                if (ignored := state.get("ignored_fields")) is not None:
                    headers.append((IGNORED_HEADER.encode(), ignored))
                if (transfer := state.get("kv_transfer")) is not None:
                    headers.append((TRANSFER_HEADER.encode(), transfer))
                if self._is_ending():
                    headers = [each for each in headers if each[0] != b"connection"]
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with_headers)


def tell_ignored(scope: Scope, paths: Sequence[str]) -> None:
    """List ignored request fields in the answer's header."""
    names = (_UNSAFE.sub("?", path[:_LONGEST_NAME]) for path in paths)
    state = scope.setdefault("state", {})
    before = [state["ignored_fields"]] if "ignored_fields" in state else []
    state["ignored_fields"] = b", ".join([*before, ", ".join(names).encode()])


def tell_transfer(scope: Scope, text: str) -> None:
    """Report in the answer's header where the prompt of a decode leg came from."""
    scope.setdefault("state", {})["kv_transfer"] = text.encode()


def body_sender(scope: Scope, send: Send) -> Send:
    """Return a sender of body parts past all layers, which only inspect a response's start and
    would cost every token a call. `send` itself if there are none."""
    found: Send = scope.get("state", {}).get("send_body", send)
    return found


def header_of(scope: Scope, name: str) -> str | None:
    """Return the request's first header of this name, which must be in lower case. (Most are not
    there, and Starlette raises and catches an exception for each of those.)"""
    wanted = name.encode()
    for found, value in scope["headers"]:
        if found == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


def request_id_of(http: Request) -> str:
    found: str = http.state.request_id
    return found
