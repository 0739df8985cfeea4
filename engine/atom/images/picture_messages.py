"""Messages between PictureReader and the picture server, and their bytes on a stream socket.

A message is its header, as msgpack behind its length, and then the bytes whose number the header
has: a client's file one way, processed pixels the other.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

_LENGTH = struct.Struct("<I")
_MOST_HEADER_BYTES = 1 << 16

_Header = TypeVar("_Header", bound=msgspec.Struct)


class PictureSetup(msgspec.Struct, frozen=True):
    """The model and the limits of one picture. folder: of the checkpoint; config: its config.json;
    limit_memory_bytes: beyond those of the idle server; limit_cpu_seconds, limit_wall_seconds: of
    decoding and processing."""

    folder: str
    config: dict[str, object]
    limit_memory_bytes: int = 640 << 20
    limit_cpu_seconds: int = 8
    limit_wall_seconds: float = 20.0


class PictureOrder(msgspec.Struct, frozen=True):
    """A file to read. num_bytes: of the file, which follows. most_tokens: a picture of more tokens
    is refused before it is decoded. longest_edge: the picture is reduced to it first; 0 for its own
    size."""

    num_bytes: int
    most_tokens: int
    longest_edge: int = 0


class PictureReply(msgspec.Struct, frozen=True):
    """A processed picture, or why it is refused. shape: of the float32 pixels, which follow."""

    refused: str = ""
    digest: bytes = b""
    grid: tuple[int, int, int] = (0, 0, 0)
    tokens: int = 0
    shape: tuple[int, ...] = ()


def send(connection: socket.socket, header: msgspec.Struct, body: bytes | memoryview) -> None:
    """Send a message. Raises `OSError`."""
    encoded = msgspec.msgpack.encode(header)
    connection.sendall(_LENGTH.pack(len(encoded)) + encoded)
    connection.sendall(body)


def receive_header(connection: socket.socket, kind: type[_Header]) -> _Header:
    """Return the next header. Raises `ConnectionError` at the end of the connection."""
    length = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(length))
    (size,) = _LENGTH.unpack(length)
    if size > _MOST_HEADER_BYTES:
        raise ConnectionError(f"a header of {size} bytes: the connection is out of step")
    encoded = bytearray(size)
    receive_into(connection, memoryview(encoded))
    return msgspec.msgpack.decode(encoded, type=kind)


def receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Fill a buffer. Raises `ConnectionError` at the end of the connection."""
    while buffer:
        count = connection.recv_into(buffer)
        if count == 0:
            raise ConnectionError("the connection has ended")
        buffer = buffer[count:]
