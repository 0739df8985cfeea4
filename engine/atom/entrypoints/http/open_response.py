"""OpenResponse: the response under way on one connection, sent piece by piece.

An ASGI server takes every piece as a message through a coroutine, and reports that the client has
left only to a task that waits for it. For a token that is most of the cost of sending, so our own
protocol (http_protocol.py) offers the same without either: it writes the bytes that uvicorn's cycle
would write, if that cycle would write them at once, and otherwise declines. Handlers find it in the
scope's state under our protocol; everything works without it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_STATE_KEY = "open_response"


class OpenResponse:
    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._on_lost: Callable[[], None] | None = None

    def offer(self) -> None:
        """Let handlers of this request find it."""
        self._cycle.scope["state"][_STATE_KEY] = self

    @property
    def whole_request_came(self) -> bool:
        """Return whether reading the request's body need not wait."""
        return not self._cycle.more_body

    def write_piece(self, data: bytes) -> bool:
        """Write a piece of the body (not empty, not the last) at once; return False, with nothing
        done, if it has to be sent in the ordinary way."""
        cycle = self._cycle
        if (
            self._flow.write_paused
            or not cycle.chunked_encoding  # nothing sent yet, or a length announced
            or cycle.disconnected
            or cycle.response_complete
        ):
            return False
        self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        """Register a callback to be called once if the client leaves before the response is
        complete, also if it has left already; None to end that. The request's body must have been
        read."""
        self._on_lost = callback
        self._flow.resume_reading()  # a connection that is not read is not seen to end
        if self._cycle.disconnected:
            self.lost()

    def lost(self) -> None:
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()


def open_response_of(scope: Scope) -> OpenResponse | None:
    """Find this request's open response; None where another protocol serves it."""
    found: OpenResponse | None = scope.get("state", {}).get(_STATE_KEY)
    return found
