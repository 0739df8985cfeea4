"""MatcherLink: one matcher process as the engine core sees it.

Sends it jobs and reads its replies, never waiting. Knows which rows are in it, not why. Owned by
MatcherPool.
"""

from __future__ import annotations

import contextlib
import socket

import msgspec

from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.matcher_messages import MatcherJobs, RowReply

_DECODER = msgspec.msgpack.Decoder(list[RowReply])


class MatcherLink:
    """Connect to one matcher process. rows: request ids by the slot of their mask, including rows
    that are leaving. greeted: the process has begun."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._frames = FrameReader(connection)
        self.rows: dict[int, int] = {}
        self.greeted = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, jobs: MatcherJobs) -> None:
        """Send jobs. A process that cannot take them counts as lost: `receive` will report that."""
        payload = framed(msgspec.msgpack.encode(jobs))
        try:
            sent = self._connection.send(payload)
        except OSError:
            sent = 0
        if sent < len(payload):
            self.abandon()

    def receive(self) -> tuple[list[RowReply], bool]:
        """Return the received replies, and whether the process is still alive."""
        alive = True
        with contextlib.suppress(BlockingIOError):
            try:
                alive = self._frames.read()
            except ConnectionError:
                alive = False
        replies: list[RowReply] = []
        while (payload := self._frames.take()) is not None:
            self.greeted = True
            replies += _DECODER.decode(payload)
        return replies, alive

    def abandon(self) -> None:
        """Let the process end, at the latest when its call has used up its time. When `receive`
        reports the end, it writes no masks any more."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._connection.close()
