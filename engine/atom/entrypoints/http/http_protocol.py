"""uvicorn's HTTP protocol with bounds on request heads, and with parts of HTTP that it lacks.

httptools reads headers of any length for any time, and stores every byte of them; no layer above a
connection can refuse a head that it never sees. Bodies are bounded where they are read
(openai/body.py).

Beyond uvicorn: bytes that are no HTTP are refused in the API's own shape, as is a request that does
not name exactly one host (RFC 9112, section 3.2); an offer to switch protocols is ignored without
losing the request's body (Java's own client makes one in every request); HTTP/1.0 clients get no
chunks; if a client leaves, its pipelined requests are dropped too. uvicorn_points.py lists the
internals of uvicorn that this needs, and checks them at start.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from atom.entrypoints.http.errors import describe
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.listener import MOST_UNSENT_BYTES
from atom.entrypoints.http.open_response import OpenResponse
from atom.errors import RequestError

if TYPE_CHECKING:
    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
    )
    from uvicorn._types import Scope as AsgiScope

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_SECONDS = 60.0

_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
}
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP2_PREFACE = b"PRI * HTTP/2"
_OFFER_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})
# RFC 3986, section 3.2.2: a name, which may be empty, or an address in brackets; then a port.
_SHOWN_HOST_BYTES = 100
_AROUND_HEADER = len(": \r\n")
_HOST = re.compile(rb"([\w.~!$&'()*+,;=%-]*|\[[\w.~!$&'()*+,;=%:-]+\])(:\d*)?")


class BoundedHttpProtocol(HttpToolsProtocol):
    """Handle one connection. A head is a request line with its headers."""

    _reads_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # the request that is being answered
    _response: OpenResponse | None = None  # to it

    # ---- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MOST_UNSENT_BYTES)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        running = self._unanswered()
        if running is not None:  # uvicorn notifies only the newest of pipelined requests
            running.disconnected = True
            running.message_event.set()
            if self.access_log and not running.response_started:
                self._log_leaving(running)
        super().connection_lost(exc)
        if self._response is not None:
            self._response.lost()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Treat a client that ends its side as gone: its slow answer is dropped. It may still read
        a fast one: True keeps the connection for writing."""
        running = self._unanswered()
        if running is None or running is not self.cycle or running.response_started:
            return False
        if running.scope["method"] in ("GET", "HEAD"):  # answered in a moment
            running.keep_alive = False
            return True
        self._refuse(
            499,
            "the client ended its side of the connection before the answer, which aborts the "
            "request; leave it open until the answer is read",
        )
        return False

    def _unanswered(self) -> RequestResponseCycle | None:
        running = self._running
        return None if running is None or running.response_complete else running

    def _log_leaving(self, cycle: RequestResponseCycle) -> None:
        cycle.access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            get_client_addr(cycle.scope),
            cycle.scope["method"],
            get_path_with_query_string(cycle.scope),
            cycle.scope["http_version"],
            499,
        )

    # ---- received data ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if not self._refuse_long_head(data):
                self._refuse(400, self._not_http(data, _cause(error)))
            return
        self._refuse_long_head(data)

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as error:
                parsed_bytes = error.args[0]
            # The parser takes the rest for another protocol: it restarts with the same request,
            # without the offer.
            method = self.parser.get_method()
            if method == b"CONNECT":
                raise httptools.HttpParserError("CONNECT is for proxies")
            version = self.parser.get_http_version().encode()
            head = _head_without_offer(b"%b %b HTTP/%b" % (method, self.url, version), self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(head)
            rest = rest[parsed_bytes:]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if _size_of(self.url, self.headers) > MAX_HEAD_BYTES:  # it came in one piece
            raise _LongHeadError("the head is too long")
        _check_host(self.parser.get_http_version(), self.headers)
        super().on_headers_complete()  # may find its path too long
        self._reads_head = False
        self._stop_timer()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self.access_log:
            cycle.access_logger = _WithRequestId(self.access_logger, cycle.scope)  # type: ignore[assignment]
        self._response = OpenResponse(cycle)
        self._response.offer()
        if cycle.scope["http_version"] == "1.0":
            app = _ending_with_connection(app, cycle)
        super()._start_asgi_task(cycle, app)

    # ---- refusals -----------------------------------------------------------------------------

    def _refuse_long_head(self, data: bytes) -> bool:
        if not self._reads_head:
            return False
        self._head_bytes += len(data)
        if self._head_bytes <= MAX_HEAD_BYTES:
            return False
        kibibytes = MAX_HEAD_BYTES // 1024
        self._refuse(431, f"the request line and headers are larger than {kibibytes} KiB")
        return True

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

    def _not_http(self, data: bytes, error: Exception) -> str:
        what = f"this is no HTTP/1.1 request: {error}"
        if data.startswith(_TLS_HANDSHAKE):
            what = "this port takes plain HTTP, not TLS: use http:// instead of https://"
        elif data.startswith(_HTTP2_PREFACE):
            what = "this port takes HTTP/1.1, not HTTP/2: do not begin with HTTP/2 here"
        logger.warning("refused what %s sent: %s", _address(self.client), what)
        return what

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; only close in the middle of an answer."""
        if self.transport.is_closing():
            return
        running = self._unanswered()
        if running is None or not running.response_started:
            body = to_json(describe(RequestError(message, status=status))[1])
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class _WithRequestId(logging.LoggerAdapter[logging.Logger]):
    """Lines of the access log end with the request's id, which the application finds or makes."""

    def __init__(self, log: logging.Logger, scope: HTTPScope) -> None:
        super().__init__(log)
        self._scope = scope

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        # Ids have no percent sign (response_headers.py).
        return f"{msg} {self._scope.get('state', {}).get('request_id', '-')}", kwargs


class _HostError(httptools.HttpParserError):
    """A request does not say by one Host header which host it is for."""


class _LongHeadError(httptools.HttpParserError):
    """A head is longer than any head may be."""


def _size_of(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Count the bytes of a head, but for the method and blanks that are left out."""
    return len(url) + sum(len(name) + len(value) + _AROUND_HEADER for name, value in headers)


def _check_host(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `_HostError` unless exactly one Host header has a host; HTTP/1.0 knows none."""
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts and version in ("0.9", "1.0"):
        return
    if len(hosts) != 1:
        count = f"{len(hosts)} Host headers" if hosts else "no Host header"
        raise _HostError(f"it has {count}; send exactly one")
    if _HOST.fullmatch(hosts[0]) is None:
        raise _HostError(
            f"its Host header {hosts[0][:_SHOWN_HOST_BYTES]!r} is no host; send a name or an "
            "address, and perhaps a port"
        )


def _cause(error: Exception) -> Exception:
    """Return our own error where the parser has wrapped it in one of its callbacks."""
    return error.__context__ if isinstance(error.__context__, _HostError) else error


def _head_without_offer(first: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [first]
    for name, value in headers:
        if name not in _OFFER_HEADERS:
            lines.append(b"%b: %b" % (name, value))
        elif name == b"connection" and b"close" in value.lower():
            lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


def _ending_with_connection(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """End the response with the connection: HTTP/1.0 knows no chunks, so a body of unknown length
    ends there."""

    async def run(scope: AsgiScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        length_is_known = False

        async def send_plain(message: ASGISendEvent) -> None:
            nonlocal length_is_known
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                length_is_known = any(name.lower() == b"content-length" for name, _ in headers)
                if not length_is_known:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and not length_is_known:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def _address(client: tuple[str, int] | None) -> str:
    return "a client" if client is None else client[0]
