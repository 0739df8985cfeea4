"""No process of ours outlives the one that started it.

Two ways, since each has a gap. The lifeline: standard input is a pipe that the parent holds open,
and its end means that the parent is gone; it works everywhere, but needs a thread that can run. The
kernel's parent-death signal (Linux) also ends a process that is stopped or stuck in a driver; it
belongs to the *thread* that made the child, which is why children are made by the thread that waits
for them. Called first thing by core_main and the API server processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """From here on this process is killed when its parent thread ends (Linux; else nothing)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def exit_when_input_ends() -> None:
    """From here on this process ends at once when its standard input does."""
    threading.Thread(target=_wait_for_end, name="lifeline", daemon=True).start()


def _wait_for_end() -> None:
    # Raw reads: a buffered reader would hold a lock that interpreter shutdown waits for.
    while os.read(0, 4096):
        pass
    os._exit(1)
