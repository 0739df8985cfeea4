"""Server-sent events: framing, and a response that notices when its reader has gone.

A frame source is an async generator of bytes. When the client disconnects, the source is ended at
once and `close` is called (which aborts the request in the engine); when the source fails, the
client gets one error event and the end of the stream. Knows nothing of what the frames say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atom.entrypoints.openai.errors import describe
from atom.entrypoints.openai.responses import to_json
from atom.errors import AtomError

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that would collect events pass them on
]

Result = TypeVar("Result")


def frame(body: object) -> bytes:
    return b"data: " + to_json(body) + b"\n\n"


class EventStream(Response):
    """Sends frames as they come. A reader that does not read makes the source wait, no one else."""

    def __init__(self, frames: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        """close: called once at the end in any case, even if no frame was ever asked for."""
        super().__init__()
        self._frames = frames
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, lambda: self._send_all(send))
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async with aclosing(self._frames) as frames:
            try:
                async for data in frames:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except Exception as error:
                if not isinstance(error, AtomError):
                    logger.exception("an event stream failed")
                data = frame(describe(error)[1])
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def until_disconnect(
    receive: Receive, work: Callable[[], Awaitable[Result]]
) -> Result | None:
    """What `work` returns, or None when the client left first; `work` is then cancelled and has
    ended. The request's body must have been read."""
    working = asyncio.ensure_future(work())
    watching = asyncio.ensure_future(_wait_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
