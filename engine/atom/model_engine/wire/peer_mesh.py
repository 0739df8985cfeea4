"""PeerMesh: token counts between engine cores that compute together, over a socket for each pair.

A message is two numbers. A waiting rank sleeps in a poll, and a process's end closes its sockets,
so the operating system reports it to the others. The process that starts a core makes its sockets
and the core inherits them, without names: nothing is left of them, however the processes end. A
core of another node is reached by a TCP connection (cross_node_wakeup.py), which does not refuse a
message at once when the other end is gone: only the connection's end reports it.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec

_FORMAT = struct.Struct("<qq")
# Step numbers of other messages.
_LEAVING, _PORT = -1, -2
_UNREAD_BYTES = 4096  # a rank is two messages ahead of another at most
# A TCP connection whose other end sends nothing more is not yet one that has ended here.
_END = getattr(select, "POLLRDHUP", 0)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The message of a rank, once for each step: the most tokens that it computes in it."""

    step: int
    tokens: int


class MeshOrder(msgspec.Struct, frozen=True):
    """The way to the other cores. connections: by peer, an inherited descriptor."""

    connections: dict[int, int]


class PeerLeftError(Exception):
    """Raised when another rank has ended in order: there is no further step."""


class PeerLostError(Exception):
    """Raised when another rank's process is gone."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"rank {peer} of the data-parallel group is gone")
        self.peer = peer


Connections = dict[int, socket.socket]  # one rank's ends, by peer


def mesh_sockets(ranks: Iterable[int]) -> dict[int, Connections]:
    """Return the ends of ranks of one machine, by rank."""
    ends: dict[int, Connections] = {rank: {} for rank in ranks}
    for one, other in combinations(ends, 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    return ends


class PeerMesh:
    """Hold one rank's sockets; belongs to one thread, except `wait_lost`."""

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        self._connections = dict(connections)
        self._by_fd = {connection.fileno(): peer for peer, connection in connections.items()}
        self._poll = select.poll()
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)
        self._left: dict[int, int] = {}  # by peer, the step before which it leaves

    @property
    def fds(self) -> Sequence[int]:
        """List the descriptors that can be read when a message is there."""
        return tuple(self._by_fd)

    def send(self, count: TokenCount) -> None:
        """Send a count to every peer. Raises `PeerLeftError` and `PeerLostError`."""
        self._send(count.step, count.tokens)

    def send_port(self, port: int) -> None:
        """Send the others the port where all meet for their collectives."""
        self._send(_PORT, port)

    def leave(self, step: int) -> None:
        """Announce to the peers that this rank sends no count for this step or a later one, and
        that the earlier steps are run; peers that are gone already are skipped."""
        for connection in self._connections.values():
            try:
                connection.send(_FORMAT.pack(_LEAVING, step))
            except OSError:
                continue

    def receive_port(self, peer: int) -> int:
        """Receive the port that this rank sends first of all."""
        return self._read(peer)[1]

    def receive(self, *, wait: bool) -> Iterator[tuple[int, TokenCount]]:
        """Yield the received counts; `wait` until there is one, or a peer leaves. Raises
        `PeerLostError`."""
        for fd, _ in self._poll.poll(None if wait else 0):
            peer = self._by_fd[fd]
            step, tokens = self._read(peer)
            if step == _LEAVING:
                self._left[peer] = tokens
                self._poll.unregister(fd)
            else:
                yield peer, TokenCount(step, tokens)

    def check_stay(self, step: int) -> None:
        """Raises `PeerLeftError` if a peer has left before this step. One that has left behind it
        has received every rank's count for it, and runs it: so must a rank that still lacks
        some."""
        if any(left <= step for left in self._left.values()):
            raise PeerLeftError

    def wait_lost(self) -> int:
        """Sleep until a peer's process has ended without leaving; which it was. From any thread."""
        ends = select.poll()
        for fd in self._by_fd:
            ends.register(fd, _END)  # ends alone
        while True:
            for fd, _ in ends.poll():
                ends.unregister(fd)
                return self._by_fd[fd]

    def has_left(self, peer: int) -> bool:
        """Return whether a peer has announced its end, even if the message is still unread here.
        From any thread, for a peer whose process has ended."""
        return peer in self._left or self._last_step(peer) == _LEAVING

    def _send(self, step: int, tokens: int) -> None:
        message = _FORMAT.pack(step, tokens)
        for peer, connection in self._connections.items():
            try:
                connection.send(message)
            except OSError as error:
                if self.has_left(peer):
                    raise PeerLeftError from error
                raise PeerLostError(peer) from error

    def _last_step(self, peer: int) -> int | None:
        """Peek at the last step that a peer has said and that is unread; None where all is read."""
        try:
            unread = self._connections[peer].recv(
                _UNREAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT
            )
        except OSError:
            return None
        if len(unread) < _FORMAT.size:
            return None
        step: int = _FORMAT.unpack(unread[-_FORMAT.size :])[0]
        return step

    def _read(self, peer: int) -> tuple[int, int]:
        try:
            message = self._connections[peer].recv(_FORMAT.size, socket.MSG_WAITALL)
        except OSError as error:
            raise PeerLostError(peer) from error
        if len(message) < _FORMAT.size:
            raise PeerLostError(peer)
        step, tokens = _FORMAT.unpack(message)
        return step, tokens
