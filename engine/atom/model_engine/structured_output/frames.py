"""Length-prefixed messages on a stream socket, between the engine core and the compile server's
children. Knows nothing of their content. A message has at most `MAX_FRAME_BYTES`."""

from __future__ import annotations

import socket
import struct

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16


def framed(payload: bytes) -> bytes:
    """Return the message as it travels."""
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """The messages of one connection, as they become whole."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray()

    def take(self) -> bytes | None:
        """Return the next message that has arrived whole; None if it has not yet."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise ConnectionError(f"a message of {length} bytes: the connection is out of step")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return payload

    def read(self) -> bool:
        """Read the available bytes once; False at the connection's end. Raises BlockingIOError if a
        non-blocking connection has none."""
        data = self.connection.recv(_READ_BYTES)
        self._buffer += data
        return bool(data)

    def wait(self) -> bytes | None:
        """Return the next message of a blocking connection; None at its end."""
        while (payload := self.take()) is None:
            if not self.read():
                return None
        return payload
