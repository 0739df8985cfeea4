"""uvicorn's HTTP protocol with bounds on what precedes a body: how large, and how long it takes.

httptools reads headers of any length for any time, and every byte of them is kept; nothing above a
connection can refuse what it is not shown. Bodies are bounded where they are read (openai/body.py).
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from atom.entrypoints.openai.errors import describe
from atom.entrypoints.openai.responses import to_json
from atom.errors import RequestError

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_SECONDS = 60.0

_PHRASES = {408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. A head is a request line with its headers."""

    _reads_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._reads_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                kibibytes = MAX_HEAD_BYTES // 1024
                self._refuse(431, f"the request line and headers are larger than {kibibytes} KiB")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._reads_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._reads_head, self._head_bytes = True, 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._refuse(408, f"no whole request came within {HEAD_TIMEOUT_SECONDS:g} s")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = to_json(describe(RequestError(message, status=status))[1])
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
