"""FrameProxy: a TCP proxy between two engines that does something to one of their frames.

It knows where a frame ends and of which type it is, so a test can say "cut the connection before
the second page". Everything else is passed on as it is.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from dataclasses import dataclass

from atom.model_engine.kv_transfer.frames import LENGTH, Page, decode_frame


class Action(enum.StrEnum):
    """CUT: both connections end. STALL: nothing more goes this way. DROP, DOUBLE: this frame.
    LATE: by a moment. SWAP: with the next one of this way. GARBLE: a byte of it. TRUNCATE: half of
    it, and then the end."""

    CUT = "cut"
    STALL = "stall"
    DROP = "drop"
    DOUBLE = "double"
    LATE = "late"
    SWAP = "swap"
    GARBLE = "garble"
    TRUNCATE = "truncate"


@dataclass(frozen=True)
class Fault:
    """What happens to the `number`-th frame of a type, from 0."""

    kind: str
    action: Action
    number: int = 0


LATE_SECONDS = 0.3


class FrameProxy:
    """Use as a context manager; `address` is where consumers connect. met: the fault happened."""

    def __init__(self, target: tuple[str, int], fault: Fault | None) -> None:
        self._target = target
        self._fault = fault
        self._seen = 0
        self.met = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> FrameProxy:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._open:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                consumer, _ = self._listener.accept()
                producer = socket.create_connection(self._target)
                self._open += (consumer, producer)
                for source, sink in ((consumer, producer), (producer, consumer)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass frames on until an end."""
        waiting = b""
        try:
            while True:
                kind, data = _read(source)
                action = self._due(kind)
                if action is Action.STALL:
                    return  # and leave both open
                if action is Action.CUT:
                    break
                if action is Action.TRUNCATE:
                    sink.sendall(data[: len(data) // 2])
                    break
                if action is Action.SWAP:
                    waiting = data
                    continue
                sink.sendall(_changed(data, action) + waiting)
                waiting = b""
        except (OSError, EOFError):
            pass
        _end(source)
        _end(sink)

    def _due(self, kind: str) -> Action | None:
        fault = self._fault
        if fault is None or fault.kind != kind:
            return None
        with self._lock:
            number, self._seen = self._seen, self._seen + 1
        if number != fault.number:
            return None
        self.met = True
        return fault.action


def _changed(data: bytes, action: Action | None) -> bytes:
    if action is Action.DROP:
        return b""
    if action is Action.DOUBLE:
        return data * 2
    if action is Action.LATE:
        threading.Event().wait(LATE_SECONDS)  # the lateness itself, which no test waits for
    if action is Action.GARBLE:
        return data[:-1] + bytes([data[-1] ^ 0xFF])
    return data


def _read(source: socket.socket) -> tuple[str, bytes]:
    """The type of a frame, and all of its bytes: of a page, the page too."""
    prefix = _exactly(source, LENGTH.size)
    body = _exactly(source, LENGTH.unpack(prefix)[0])
    frame = decode_frame(body)
    payload = _exactly(source, frame.inline_bytes) if isinstance(frame, Page) else b""
    return type(frame).__name__.lower(), prefix + body + payload


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
