"""No process of ours outlives the one that started it.

Two ways, since each has a gap. The lifeline: standard input is a pipe that the parent holds open
and writes lines into, and its end means that the parent is gone; it works everywhere, but needs a
thread that can run. The kernel's parent-death signal (Linux) also ends a process that is stopped or
stuck in a driver. Called first thing by programs that ChildProcess starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 65536


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent thread ends (Linux; else do nothing)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


class ParentLines:
    """The lines on standard input. No other code may read `sys.stdin`."""

    def __init__(self) -> None:
        self._lines = _lines_of(0)

    def next(self) -> bytes:
        """Wait for a line; end this process if the parent has closed the pipe."""
        line = next(self._lines, None)
        if line is None:
            os._exit(1)
        return line

    def follow(self, on_line: Callable[[bytes], None] | None = None) -> None:
        """Start a thread that reads: `on_line` gets each further line (on that thread), and this
        process ends at once when the input does."""

        def read() -> None:
            for line in self._lines:
                if on_line is not None:
                    on_line(line)
            os._exit(1)

        threading.Thread(target=read, name="lifeline", daemon=True).start()


def _lines_of(descriptor: int) -> Iterator[bytes]:
    # Raw reads: a buffered reader would hold a lock that interpreter shutdown waits for.
    rest = b""
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
