"""The process settings of our programs: standard streams, garbage collector, cores, open files, and
the last message."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

_OBJECTS_BETWEEN_COLLECTIONS = 20_000
_NICENESS = 10
_SWITCH_SECONDS = 0.0002
_ENOUGH_OPEN_FILES = 65_536
# Where Kubernetes reads a container's last message; elsewhere it does not exist.
_MESSAGE_FILE = "/dev/termination-log"
_MESSAGE_FILE_VARIABLE = "ATOM_TERMINATION_LOG"
MOST_MESSAGE_BYTES = 4096  # the API keeps no more
_STANDARD_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # by their descriptors


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the process was started without.

    Otherwise the next files and sockets would get its descriptor: libuv aborts a process that
    closes such a socket, and output would reach a client. Called before a program opens anything.
    """
    for descriptor in range(len(_STANDARD_STREAMS)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor, "the lowest free descriptor is the next one opened"
            os.set_inheritable(descriptor, True)  # our processes need it as well
    for name, mode in _STANDARD_STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def spare_the_collector() -> None:
    """Freeze the objects of start-up, which stay, and collect seldom: a token makes many objects
    that are freed without the collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def switch_threads_soon() -> None:
    """Let a thread that waits for the interpreter have it after a moment.

    An event loop gives the interpreter up at each of its system calls, ten for a request. Beside a
    thread that renders a long conversation it waits for it as often: 5 ms each is Python's own
    measure, and makes 18 ms of an exchange that takes 0.1 ms; a fifth of a millisecond makes
    0.4 ms."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def yield_cores() -> None:
    """Lower the priority of this thread and those it starts, for an engine on the same cores.

    When one of the engine's threads has to wait for us, all of them do, at their next barrier; we
    can use the moments in which they leave a core idle. With free cores it changes nothing.
    """
    os.nice(_NICENESS)


def allow_many_open_files() -> int:
    """Raise the soft limit of open files as far as the hard one lets us; the limit from now on.

    Many systems start programs with 1,024, for the sake of old ones that cannot count further; past
    it connections are reset before anybody could answer them. Called by programs that open a
    connection per request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH_OPEN_FILES if hard == unlimited else min(_ENOUGH_OPEN_FILES, hard)
    if soft == unlimited or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def leave_message(content: dict[str, Any]) -> None:
    """Leave `content` as JSON for those who read the pod's status, where Kubernetes keeps it."""
    path = Path(os.environ.get(_MESSAGE_FILE_VARIABLE, _MESSAGE_FILE))
    text = json.dumps(content)
    if path.exists() and len(text.encode()) <= MOST_MESSAGE_BYTES:
        with contextlib.suppress(OSError):
            path.write_text(text, encoding="utf-8")
