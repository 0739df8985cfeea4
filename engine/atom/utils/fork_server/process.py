"""The side of the process: say that it serves, fork a child for each connection, limit the child.

A child may take minutes or all memory, or crash: the kernel enforces its limits, and whatever
happens there, the child ends, and the program that asks goes on. The process ends when its standard
input closes.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

_BACKLOG = 64

_Setup = TypeVar("_Setup", bound=msgspec.Struct)


class ServerReady(msgspec.Struct, frozen=True):
    """The first and only word of a process on its standard output. error: the reason why the
    process cannot serve; empty if it serves."""

    error: str = ""


def read_setup(kind: type[_Setup]) -> _Setup:
    """Read the set-up, which is the first line of standard input."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)


def refuse(reason: str) -> int:
    """Report the reason why this process cannot serve. Return its exit code."""
    _say(ServerReady(error=reason))
    return 1


def serve(answer: Callable[[socket.socket], None]) -> int:
    """Call `answer` in a child for each connection to the socket that the command line names, until
    standard input ends. Return this process's exit code."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(_BACKLOG)
        _say(ServerReady())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return 0
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()  # else clients of a server that has died wait for this child
                    _answer_and_exit(connection, answer)


def limit_memory(num_bytes: int) -> None:
    """Let this child take `num_bytes` beyond its memory of now, and dump no core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_time(cpu_seconds: int, wall_seconds: float) -> None:
    """End this child after so much processor time, or so much time."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def _say(ready: ServerReady) -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(msgspec.msgpack.encode(ready))
    # Closes the pipe: its reader sees the end. Nothing else may be written there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _answer_and_exit(
    connection: socket.socket, answer: Callable[[socket.socket], None]
) -> NoReturn:
    """Run the child. Dying without an answer is an answer too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries' warnings quote the client
        answer(connection)
    finally:
        os._exit(0)
