"""One POST to an ASGI application in this process: the server's own way, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp

from atom.entrypoints.http.client_identity import CLIENT_LABEL

_HOST = b"batch"


async def post(
    app: ASGIApp, path: str, body: bytes, client: str | None = None
) -> tuple[int, bytes]:
    """Return the status and the body of the answer. Cancelling it cancels the request. client: its
    label (`ClientIdentity`); None if no client is told apart."""
    status, parts = 500, []
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # this client never leaves
        raise AssertionError("nothing sets it")

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(_scope(path, len(body), client), receive, send)
    return status, b"".join(parts)


def _scope(path: str, length: int, client: str | None) -> dict[str, Any]:
    headers = [
        (b"host", _HOST),
        (b"content-type", b"application/json"),
        (b"content-length", str(length).encode()),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {} if client is None else {CLIENT_LABEL: client},
    }
