"""NodeLink: a connection between two nodes of a group, usually the first and another.

Frames of a kind and bytes over TCP, rather than ZMQ: the connection has two ends, and the kernel
reports at once that the other end's process is gone, or within seconds that its machine is. Steps
have the format of shared memory (step_codec); all other bodies are JSON. Never pickle. A process
that reaches the port is trusted, as by torch's store: a network policy keeps others away.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
import threading
from enum import IntEnum

_HEAD = struct.Struct("!BQ")
_MOST_BYTES = 1 << 30  # more is no frame of ours
_SILENCE_SECONDS = 2  # of a machine that does not even acknowledge


class Frame(IntEnum):
    """Name the kinds of frames."""

    HELLO = 1  # node → first: NodeHello
    ORDER = 2  # first → node: NodeOrder
    STEP = 3  # first → node: a step's message
    COUNT = 4  # first → node: how many collectives have your ranks begun?
    COUNTS = 5  # node → first: the numbers
    END = 6  # first → node: no step follows
    LOST = 7  # either way: LastWords
    # Node → one of a lower rank: MeshEnds; the rest is token counts of two cores (peer_mesh).
    CONNECTION = 8


_KINDS = frozenset(map(int, Frame))


class NodeLink:
    """Hold one end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._connection = connection
        self._sending = threading.Lock()
        _tell_soon_of_its_end(connection)

    def send(self, kind: Frame, body: bytes | bytearray = b"") -> None:
        """Raises `OSError` when the other end is gone."""
        with self._sending:
            self._connection.sendall(_HEAD.pack(kind, len(body)))
            self._connection.sendall(body)

    def receive(self) -> tuple[Frame, bytearray] | None:
        """Return the next frame; None if the other end is gone, or sends an invalid one."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        if size > _MOST_BYTES or kind not in _KINDS:
            return None
        body = self._exactly(size)
        return None if body is None else (Frame(kind), body)

    def wait_at_most(self, seconds: float | None) -> None:
        """Take silence of so long within a frame, or before one, for an end; None for ever."""
        self._connection.settimeout(seconds)

    @property
    def other_host(self) -> str:
        """Return the other end's address, by which it can be reached."""
        address = ipaddress.ip_address(self._connection.getpeername()[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)

    def say_last(self) -> None:
        """Close the sending side; incoming frames are still read."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Close both directions, also for a thread that waits to receive."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> socket.socket:
        """Return the connection to its next user; the link is used no more."""
        return self._connection

    def close(self) -> None:
        self._connection.close()

    def _exactly(self, size: int) -> bytearray | None:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                read = self._connection.recv_into(view[at:])
            except OSError:
                return None
            if not read:
                return None
            at += read
        return data


def _tell_soon_of_its_end(connection: socket.socket) -> None:
    """Send small frames at once, and treat a silent peer kernel as an end."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, 1),
            (socket.TCP_KEEPINTVL, 1),
            (socket.TCP_KEEPCNT, _SILENCE_SECONDS),
            (socket.TCP_USER_TIMEOUT, _SILENCE_SECONDS * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
