"""Server-sent events: framing, and a response that notices when its reader has gone.

Frames are sent in the turn of the event loop that brought their content, without a task switch; a
reader that falls behind gets the accumulated frames in one piece. When the client disconnects, the
frames are closed (which aborts the request in the engine); when they fail, the client gets one
error event and the end of the stream. Knows nothing of the frames' content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from atom.entrypoints.http.errors import describe
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.open_response import OpenResponse, open_response_of
from atom.entrypoints.http.response_headers import body_sender
from atom.errors import AtomError
from atom.utils.eager import run_eagerly

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that would collect events pass them on
]

Result = TypeVar("Result")


def frame(body: object) -> bytes:
    return b"data: " + to_json(body) + b"\n\n"


def error_frame(error: Exception) -> bytes:
    """Write an error as OpenAI's chats and completions end a stream with it."""
    return frame(describe(error)[1])


class Frames(Protocol):
    """Provide the frames of an event stream as they become known."""

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Register a listener to be called whenever there may be something to take; None to end
        that."""

    def take(self) -> bytes:
        """Return the bytes to send now, empty if there are none yet. Raises the error that ends the
        stream early."""

    @property
    def ended(self) -> bool:
        """Return whether everything has been taken."""

    def failure(self, error: Exception) -> bytes:
        """Write the last frame of a stream that this error ends."""

    def close(self) -> None:
        """Take no more frames from it. May be called again."""


class EventStream(Response):
    """Sends frames as they come. A reader that does not read makes no other wait."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, frames: Frames) -> None:
        """frames: closed at the end in any case."""
        super().__init__()
        self.more_headers: list[tuple[bytes, bytes]] = []
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", self.content_type), *_HEADERS, *self.more_headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            response = open_response_of(scope)
            writer = FrameWriter(self._frames, body_sender(scope, send), response)
            if response is None:
                await until_disconnect(receive, writer.run)
            else:
                await _run_until_lost(writer, response)
        finally:
            self._frames.close()


class FrameWriter:
    """Frames to the body of one response."""

    def __init__(self, frames: Frames, send: Send, response: OpenResponse | None = None) -> None:
        """response: where pieces may go at once, past `send`."""
        self._frames = frames
        self._send = send
        self._write_piece = _never if response is None else response.write_piece
        self._busy = True  # a task is sending, and takes later frames too
        self._catching_up: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Send all frames and return after the last one; raises the sender's errors."""
        self._frames.listen(self._write)
        try:
            await self._send_all()
            await self._ended
        finally:
            self._frames.listen(None)
            if self._catching_up is not None:
                self._catching_up.cancel()

    def stop(self) -> None:
        """Drop the reader, which has left: `run` returns."""
        self._end()

    def _write(self) -> None:
        """Send the pending frames, within the turn that brought them if the reader has room."""
        if self._busy or self._ended.done():
            return
        data, more = self._take()
        if more and (not data or self._write_piece(data)):
            return
        try:
            rest = run_eagerly(self._send(_body(data, more)))
        except Exception as error:
            self._ended.set_exception(error)
            return
        if rest is not None:
            self._busy = True
            self._catching_up = asyncio.ensure_future(self._catch_up(rest, more))
        elif not more:
            self._ended.set_result(None)

    async def _catch_up(self, rest: Awaitable[None], more: bool) -> None:
        """Send the frames that accumulated while the reader did not read, in one piece."""
        try:
            await rest
            if more:
                await self._send_all()
            else:
                self._end()
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)

    async def _send_all(self) -> None:
        """Send until there is nothing left to take, then leave the rest to `_write`."""
        while True:
            data, more = self._take()
            if not data and more:
                self._busy = False
                return
            await self._send(_body(data, more))
            if not more:
                self._end()
                return

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _take(self) -> tuple[bytes, bool]:
        """Take (bytes, whether more may come) from the frames. A failure is the last frame."""
        frames = self._frames
        try:
            return frames.take(), not frames.ended
        except Exception as error:
            if not isinstance(error, AtomError):
                logger.exception("an event stream failed")
            return frames.failure(error), False


def _never(data: bytes) -> bool:
    return False


def _body(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _run_until_lost(writer: FrameWriter, response: OpenResponse) -> None:
    """Run the writer until its client has left, without the two tasks of `until_disconnect`."""
    response.when_lost(writer.stop)
    try:
        await writer.run()
    finally:
        response.when_lost(None)


async def until_disconnect(
    receive: Receive, work: Callable[[], Awaitable[Result]]
) -> Result | None:
    """Return the result of `work`, or None if the client left first; `work` is then cancelled and
    has ended. The request's body must have been read."""
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
