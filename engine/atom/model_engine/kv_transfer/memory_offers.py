"""MemoryOffers: hands the memory for pages to consumers of this host, by file descriptor.

A producer listens on a Unix socket without a file, in the abstract namespace, and its welcome names
the socket and a random key; the consumer connects, sends the key and receives the descriptor. So
only a consumer that was welcomed gets memory, and only its own. Belongs to the side channel's
thread, except `fetch_memory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket

from atom.model_engine.kv_transfer.page_ring import HostRing

MOST_OFFERS = 16  # rings of one engine
_KEY_CHARS = 32
_SECONDS = 2.0


class MemoryOffers:
    """Offer rings. name: of the socket."""

    def __init__(self, most_page_bytes: int) -> None:
        self.name = f"atom-kv-{secrets.token_hex(8)}"
        self._most_page_bytes = most_page_bytes
        self._rings: dict[str, HostRing] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen()

    def offer(self) -> tuple[str, HostRing]:
        """Return a new ring, and the key that fetches it."""
        key, ring = secrets.token_hex(_KEY_CHARS // 2), HostRing(self._most_page_bytes)
        self._rings[key] = ring
        return key, ring

    def withdraw(self, key: str) -> None:
        """Drop a ring, whose consumer is gone."""
        ring = self._rings.pop(key, None)
        if ring is not None:
            ring.close()

    async def serve(self) -> None:
        """Hand rings out until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            with contextlib.suppress(OSError, TimeoutError), connection:
                async with asyncio.timeout(_SECONDS):
                    key = await loop.sock_recv(connection, _KEY_CHARS)
                ring = self._rings.get(key.decode(errors="replace"))
                if ring is not None:
                    socket.send_fds(connection, [b"!"], [ring.descriptor])

    def close(self) -> None:
        self._listener.close()
        for key in list(self._rings):
            self.withdraw(key)


def fetch_memory(name: str, key: str) -> int:
    """Return the descriptor that a producer offers. Raises `OSError` if it cannot be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(f"\0{name}")
        connection.sendall(key.encode())
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        raise OSError("the producer has no memory for this connection")
    return descriptors[0]
