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

import msgspec

from atom.model_engine.kv_transfer.frames import (
    LENGTH,
    Frame,
    Page,
    decode_frame,
    encode_frame,
    frame_length,
)
from atom.model_engine.kv_transfer.page_ring import PageRing
from atom.model_engine.page_access import DevicePage, PageContent

HANDSHAKE_SECONDS = 5.0
_STUCK_SECONDS = 30.0


class FramedStream:
    """Send and read the frames of one connection. ring: the memory by which pages are sent; None
    until the consumer has mapped it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._queue: deque[tuple[Frame, bytes, PageContent]] = deque()
        self._room = asyncio.Event()  # in the ring
        self._closed = False
        self.ring: PageRing | None = None
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

    def take_used(self, position: int) -> None:
        """Free the places of pages that the consumer has used. Raises `FrameError`."""
        if self.ring is not None:
            self.ring.used(position)
            self._room.set()

    def send(self, frame: Frame, payload: PageContent = b"") -> None:
        """Queue a frame, and a page whose bytes `count_unsent` has counted. Raises `FrameError` for
        a frame that is too long."""
        encoded = b"" if isinstance(frame, Page) else encode_frame(frame)
        self._queue.append((frame, encoded, payload))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_queued())

    async def _send_queued(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            while self._queue:
                frame, encoded, payload = self._queue.popleft()
                async with asyncio.timeout(_STUCK_SECONDS):
                    if isinstance(frame, Page):
                        await self._send_page(frame, payload)
                    else:
                        self._writer.write(encoded)
                    await self._writer.drain()
                self.count_unsent(-len(payload))
            return
        self.close()

    async def _send_page(self, frame: Page, page: PageContent) -> None:
        """Send a page by the common memory, once there is room, or behind its frame."""
        if self.ring is None:
            assert not isinstance(page, DevicePage), "its consumer reads no device"
            self._writer.write(encode_frame(frame))
            self._writer.write(page)
            return
        while (position := self.ring.write(page)) is None:
            self._room.clear()
            await self._room.wait()
            if self._closed:
                raise OSError("the connection is closed")
        self._writer.write(encode_frame(msgspec.structs.replace(frame, at=position)))

    async def drain(self) -> None:
        """Wait until everything queued was sent, or the connection was lost."""
        if self._sender is not None:
            await self._sender

    def close(self) -> None:
        self._closed = True
        self._room.set()
        self._queue.clear()
        transport = self._writer.transport
        if self._sender is not None and not self._sender.done():
            transport.abort()
        else:
            self._writer.close()
