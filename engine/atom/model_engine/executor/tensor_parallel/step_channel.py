"""StepChannel: messages from one process to several on its node, through shared memory.

The leader writes a message once, and wakes each follower by a byte on its socket; an idle follower
sleeps on that socket, and neither side polls. Memory and sockets are inherited as file descriptors
without names: nothing is left of them when the processes end, however they end, and a pod's limit
of /dev/shm does not apply. A follower also counts here the collectives that it has begun, so that
the leader can identify a rank that is behind the others.
"""

from __future__ import annotations

import mmap
import socket

import numpy as np
from numpy.typing import NDArray

from atom.utils.unnamed_memory import unnamed_memory

_PLACES = 4  # messages that a follower may lag
_PLACE_BYTES = 1 << 20
_HEAD = 2  # int64 of a place: bytes of the piece, remaining bytes of the message
_PIECE_BYTES = _PLACE_BYTES - 8 * _HEAD
_COUNTER_BYTES = 64  # of a rank: a separate cache line
_MOST_RANKS = 64
_COUNTERS_BYTES = _COUNTER_BYTES * _MOST_RANKS
_TOTAL_BYTES = _COUNTERS_BYTES + _PLACES * _PLACE_BYTES
_WAKE, _READ = b"!", b"."


class StepMemory:
    """Map the memory that all ranks share: a counter per rank, and the places of messages."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _TOTAL_BYTES)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    def counter(self, rank: int) -> NDArray[np.int64]:
        """View a rank's counter [1], to be changed by that rank alone."""
        first = rank * _COUNTER_BYTES
        return self._bytes[first : first + 8].view(np.int64)

    def place(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the head and bytes of message piece `number`'s place."""
        first = _COUNTERS_BYTES + number % _PLACES * _PLACE_BYTES
        head = self._bytes[first : first + 8 * _HEAD].view(np.int64)
        return head, self._bytes[first + 8 * _HEAD : first + _PLACE_BYTES]


class StepSender:
    """The leader's end; belongs to one thread."""

    def __init__(self, followers: int) -> None:
        self._descriptor = unnamed_memory("atom-steps", _TOTAL_BYTES)
        self.memory = StepMemory(self._descriptor)
        pairs = [socket.socketpair() for _ in range(followers)]
        self._wakeups = [ours for ours, _ in pairs]
        self._theirs = [theirs for _, theirs in pairs]
        self._unread = [0] * followers
        self._sent = 0

    def descriptors(self, follower: int) -> tuple[int, int]:
        """Return the descriptors of memory and wake-up socket, which the process of this follower
        (from 0) inherits."""
        return self._descriptor, self._theirs[follower].fileno()

    def let_go(self) -> None:
        """Close the leader's copies of the followers' wake-up sockets, once they have inherited
        them."""
        for theirs in self._theirs:
            theirs.close()

    def send(self, message: bytes | bytearray) -> None:
        """Raises `OSError` when a follower is gone."""
        data = np.frombuffer(message, dtype=np.uint8)
        first = 0
        while True:
            piece = data[first : first + _PIECE_BYTES]
            first += len(piece)
            self._send_piece(piece, len(data) - first)
            if first == len(data):
                return

    def close(self) -> None:
        """Close the channel: no further message follows."""
        for wakeup in self._wakeups:
            wakeup.shutdown(socket.SHUT_WR)

    def _send_piece(self, piece: NDArray[np.uint8], rest: int) -> None:
        for follower, wakeup in enumerate(self._wakeups):
            if self._unread[follower] == _PLACES:
                self._unread[follower] -= _read(wakeup)
        head, place = self.memory.place(self._sent)
        head[:] = len(piece), rest
        place[: len(piece)] = piece
        self._sent += 1
        for follower, wakeup in enumerate(self._wakeups):
            wakeup.send(_WAKE)
            self._unread[follower] += 1


class StepReceiver:
    """A follower's end; belongs to one thread."""

    def __init__(self, memory: StepMemory, wakeup: int) -> None:
        self._memory = memory
        self._wakeup = socket.socket(fileno=wakeup)
        self._received = 0

    def receive(self) -> bytearray:
        """Return the next message, once there is one; empty after the last."""
        message = bytearray()
        while True:
            if not self._wakeup.recv(1):
                return bytearray()
            head, place = self._memory.place(self._received)
            self._received += 1
            size, rest = head.tolist()
            message += place[:size].data
            self._wakeup.send(_READ)
            if not rest:
                return message


def _read(wakeup: socket.socket) -> int:
    """Return how many messages a follower has read since it was last asked; waits for one."""
    read = len(wakeup.recv(_PLACES))
    if not read:
        raise ConnectionResetError("a rank of the tensor-parallel group is gone")
    return read
