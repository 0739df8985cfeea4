"""Tokens of an answer on their way to the replica that relays it: frames of a byte stream.

A frame is its length, 4 bytes in network order, and that many bytes of msgpack: a RequestOutput, or
the error that ended the answer. An empty frame signals that the replica is still alive.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol

import msgspec

from atom.entrypoints.http.errors import describe
from atom.model_engine.front.handover.relays import ReplicaLostError
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import RequestOutput

PATH = "/continue_request"
PROTOCOL = 1  # of the messages between servers; incremented when their meaning changes
PROTOCOL_HEADER = "x-atom-handover"
WEIGHTS_HEADER = "x-atom-weights-version"
SERVER_HEADER = "x-atom-server"  # the name of the host, on Kubernetes the pod's
BEAT_SECONDS = 5.0
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 2**28


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Report the failure of an answer. lost: the replica ended, and another may continue."""

    message: str
    status: int
    lost: bool


class Told(msgspec.Struct, frozen=True, tag=True):
    """Hold the next output of an answer."""

    output: RequestOutput


_DECODER = msgspec.msgpack.Decoder(Told | Failure)


def framed(what: Told | Failure) -> bytes:
    payload = msgspec.msgpack.encode(what)
    return _LENGTH.pack(len(payload)) + payload


class TokenFrames:
    """Frames of one answer, as an EventStream takes them."""

    def __init__(self, group: RequestGroup) -> None:
        self._group = group
        self._listener: Callable[[], None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._is_due = False

    @property
    def ended(self) -> bool:
        return self._group.drained

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener
        self._group.listen(listener)
        self._wait_for_beat()

    def take(self) -> bytes:
        is_due, self._is_due = self._is_due, False
        found = b"".join(framed(Told(_plain(output))) for _, output in self._group.take())
        return found or _LENGTH.pack(0) * is_due

    def failure(self, error: Exception) -> bytes:
        status, body = describe(error)
        return framed(Failure(body.error.message, status, lost=status >= 500))

    def close(self) -> None:
        self._listener = None
        self._wait_for_beat()
        self._group.close()

    def _wait_for_beat(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._beat = None
        if self._listener is not None:
            self._beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._say_beat)

    def _say_beat(self) -> None:
        self._is_due = True
        if self._listener is not None:
            self._listener()
        self._wait_for_beat()


def _plain(output: RequestOutput) -> RequestOutput:
    """Return an output in which all is of types that have an encoding."""
    if output.prompt_logprobs is None:
        return output
    return msgspec.structs.replace(output, prompt_logprobs=list(output.prompt_logprobs))


class ByteSource(Protocol):
    """A byte stream that is read, as aiohttp's responses have it."""

    async def readexactly(self, n: int) -> bytes: ...


async def next_frame(source: ByteSource) -> Told | Failure | None:
    """Read a frame; None for an empty one. Raises `ReplicaLostError` for an invalid one, and the
    source's errors."""
    (length,) = _LENGTH.unpack(await source.readexactly(_LENGTH.size))
    if not length:
        return None
    if length > _MOST_BYTES:
        raise ReplicaLostError(f"a frame of {length} bytes")
    try:
        frame: Told | Failure = _DECODER.decode(await source.readexactly(length))
    except msgspec.MsgspecError as error:
        raise ReplicaLostError(str(error)) from error
    return frame
