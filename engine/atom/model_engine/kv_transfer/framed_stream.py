"""FramedStream: frames over one TCP connection, read one by one and written in order.

A writer task sends what was queued; a peer that reads nothing for 30 s loses the connection, so
nothing is kept for it longer. Belongs to the side channel's thread, except `count_unsent` and
`unsent_bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque

from atom.model_engine.kv_transfer.frames import (
    LENGTH,
    Frame,
    decode_frame,
    encode_frame,
    frame_length,
)

HANDSHAKE_SECONDS = 5.0
_STUCK_SECONDS = 30.0


class FramedStream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._queue: deque[tuple[bytes, bytes | memoryview]] = deque()
        self._unsent_bytes = 0
        self._lock = threading.Lock()
        self._sender: asyncio.Task[None] | None = None
        connection = writer.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer_name(self) -> str:
        return str(self._writer.get_extra_info("peername"))

    async def read(self) -> Frame:
        """Read the next frame. Raises `FrameError`, `OSError`, or `EOFError` at the end."""
        length = frame_length(await self._reader.readexactly(LENGTH.size))
        return decode_frame(await self._reader.readexactly(length))

    async def read_payload(self, size: int) -> bytes:
        """Read the bytes behind a frame."""
        return await self._reader.readexactly(size)

    def count_unsent(self, num_bytes: int) -> None:
        """Count bytes that `send` will queue, from the thread that makes them."""
        with self._lock:
            self._unsent_bytes += num_bytes

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def send(self, frame: Frame, payload: bytes | memoryview = b"") -> None:
        """Queue a frame, and a page whose bytes `count_unsent` has counted."""
        self._queue.append((encode_frame(frame), payload))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_queued())

    async def _send_queued(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            while self._queue:
                frame, payload = self._queue.popleft()
                self._writer.write(frame)
                if payload:
                    self._writer.write(payload)
                async with asyncio.timeout(_STUCK_SECONDS):
                    await self._writer.drain()
                self.count_unsent(-len(payload))
            return
        self.close()

    async def drain(self) -> None:
        """Wait until everything queued was sent, or the connection was lost."""
        if self._sender is not None:
            await self._sender

    def close(self) -> None:
        self._queue.clear()
        transport = self._writer.transport
        if self._sender is not None and not self._sender.done():
            transport.abort()
        else:
            self._writer.close()
