"""StartOrder: the wishes for a copy of the zygote, as they travel to it beside the files."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from collections.abc import Mapping, Sequence

import msgspec

_MOST_BYTES = 1 << 20
MOST_FILES = 200  # the kernel passes 253 at once


class StartOrder(msgspec.Struct, frozen=True):
    """A program to run as a copy: the words behind `python -m`, and the state of a new process.

    descriptors: the numbers under which the copy has the files that come along. open_files: their
    limits, soft and hard.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    descriptors: Sequence[int]
    open_files: tuple[int, int]
    niceness: int
    cores: Sequence[int]
    mask: int

    @staticmethod
    def like_this_process(
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        descriptors: Sequence[int],
    ) -> StartOrder:
        mask = os.umask(0o077)
        os.umask(mask)
        return StartOrder(
            words,
            environment,
            folder,
            descriptors,
            resource.getrlimit(resource.RLIMIT_NOFILE),
            os.getpriority(os.PRIO_PROCESS, 0),
            sorted(os.sched_getaffinity(0)),
            mask,
        )

    def take_over(self) -> None:
        """Give this process the state of the one that asked."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self.open_files)
        os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
        if os.sched_getaffinity(0) != set(self.cores):
            os.sched_setaffinity(0, self.cores)
        os.umask(self.mask)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None  # TMPDIR may be another


def send_order(connection: socket.socket, order: StartOrder, files: Sequence[int]) -> None:
    socket.send_fds(connection, [msgspec.msgpack.encode(order)], list(files))


def receive_order(connection: socket.socket) -> tuple[StartOrder, list[int]] | None:
    """Return the next order and its files; None if the process that asks has ended."""
    message, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, MOST_FILES)
    return (msgspec.msgpack.decode(message, type=StartOrder), files) if message else None
