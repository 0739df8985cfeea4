"""The sockets between clients (CoreManagers) and engine cores, and the core's end of them.

Each client binds two ipc files in one folder: a ROUTER that its requests leave by, and a PULL that
outputs come in by. Every core connects a DEALER and a PUSH to each client, under the identity of
its rank; connections are made and repaired by ZMQ in the background, in any order of start. To
cores of other nodes both listen on ports as well (node_ports.py).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from atom.model_engine.wire.engine_protocol import MAX_MESSAGE_BYTES, decode, encode, identity_of

logger = logging.getLogger(__name__)

_LINGER_MS = 2000  # how long a last message may take to leave
# No larger message is even buffered; a smaller one is refused with a line in the log.
_WIRE_LIMIT_BYTES = 2 * MAX_MESSAGE_BYTES


class ClientEndpoints(msgspec.Struct, frozen=True):
    """Locate a client's sockets for a core, as ZMQ endpoints."""

    requests: str
    outputs: str


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """Locate one client's sockets. folder: of mode 0700."""

    folder: Path
    client: int

    @property
    def requests(self) -> str:
        return f"ipc://{self.folder / f'client-{self.client}-requests'}"

    @property
    def outputs(self) -> str:
        return f"ipc://{self.folder / f'client-{self.client}-outputs'}"

    @property
    def endpoints(self) -> ClientEndpoints:
        """Name the endpoints for cores of the same machine."""
        return ClientEndpoints(self.requests, self.outputs)

    @property
    def metrics(self) -> Path:
        """Return the socket file at which a client answers for its own numbers."""
        return self.folder / f"client-{self.client}-metrics"


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Open a socket that never blocks its sender (the other side always reads) nor reads without
    end."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, _WIRE_LIMIT_BYTES)
    return socket


def _is_far(client: ClientEndpoints) -> bool:
    """Return whether a client is on another node than the core."""
    return client.requests.startswith("tcp:")


def _connect(own: zmq.Socket[bytes], endpoint: str) -> None:
    own.setsockopt(zmq.IPV6, int("[" in endpoint))
    own.connect(endpoint)


def _watch(own: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Open a socket that has a message when a connection has ended: ZMQ itself would make another
    in silence."""
    return own.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a receive would return at once; cheaper than a poll of no time."""
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


class ClientLostError(Exception):
    """Report the end of a connection to a client on another node: messages under way are lost."""


class CoreSockets:
    """A core's connections to all of its clients. Receiving belongs to one thread; any may send."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        clients: Sequence[ClientEndpoints],
        rank: int,
    ) -> None:
        self._identity = identity_of(rank)
        self._endpoints = clients
        self._inboxes: list[zmq.Socket[bytes]] = []
        self._outboxes: list[zmq.Socket[bytes]] = []
        self._ends: list[zmq.Socket[bytes]] = []  # of connections to other nodes, by ZMQ
        self._poller = zmq.Poller()
        self._lock = threading.Lock()
        for client in clients:
            inbox = open_socket(context, zmq.DEALER)
            inbox.setsockopt(zmq.IDENTITY, self._identity)
            _connect(inbox, client.requests)
            self._poller.register(inbox, zmq.POLLIN)
            self._inboxes.append(inbox)
            outbox = open_socket(context, zmq.PUSH)
            _connect(outbox, client.outputs)
            self._outboxes.append(outbox)
            if _is_far(client):
                self._ends += map(_watch, (inbox, outbox))
        for end in self._ends:
            self._poller.register(end, zmq.POLLIN)

    @property
    def clients(self) -> int:
        return len(self._outboxes)

    def wake_on(self, fd: int) -> None:
        """Let `wait` return as well when this file descriptor can be read."""
        self._poller.register(fd, zmq.POLLIN)

    def wait(self, seconds: float | None = None) -> None:
        """Sleep until a message is there, or one of the descriptors of `wake_on` is readable; no
        longer than `seconds`, if they are given."""
        self._poller.poll(None if seconds is None else math.ceil(seconds * 1000))

    def receive(self) -> Iterator[msgspec.Struct]:
        """Receive every message that is there now; malformed ones are logged and left out. Raises
        `ClientLostError`."""
        if any(map(has_message, self._ends)):
            raise ClientLostError("the connection to the first node has ended")
        for inbox in self._inboxes:
            while has_message(inbox):
                try:
                    yield decode(inbox.recv_multipart())
                except ValueError as error:
                    logger.warning("refused a malformed message: %s", error)

    def send(self, client: int, body: msgspec.Struct) -> None:
        self._send(self._outboxes[client], encode(body))

    def send_all(self, body: msgspec.Struct) -> None:
        """Send a message to every client."""
        frames = encode(body)
        for outbox in self._outboxes:
            self._send(outbox, frames)

    def _send(self, outbox: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
        with self._lock:
            outbox.send_multipart([self._identity, *frames])

    def say_last(self, body: msgspec.Struct) -> None:
        """Send a message to every client, over new connections that wait until it has left: for a
        process that ends at once, from any thread."""
        with zmq.Context() as context:
            for client in self._endpoints:
                outbox = open_socket(context, zmq.PUSH)
                outbox.setsockopt(zmq.LINGER, _LINGER_MS)
                _connect(outbox, client.outputs)
                outbox.send_multipart([self._identity, *encode(body)])
                outbox.close()

    def announce(self, body: msgspec.Struct) -> None:
        """Send a message to every client by the way that its requests come: a ROUTER that has heard
        from us can route to us."""
        frames = encode(body)
        for inbox in self._inboxes:
            inbox.send_multipart(frames)

    def close(self) -> None:
        """Close the sockets; last messages get a moment to leave."""
        for end in self._ends:
            end.close()
        for socket in (*self._inboxes, *self._outboxes):
            socket.close(linger=_LINGER_MS)
