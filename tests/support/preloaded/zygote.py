"""The zygote: `python -m tests.support.preloaded.zygote FD`, a process that copies itself.

It imports the programs of an engine, answers on its socket that it is ready, and makes a copy for
each order that comes. A copy is a child of the zygote's own parent, as the kernel's CLONE_PARENT
makes it: who asked waits for it, and it is killed with who asked. Before it runs its program it
makes a zygote of its own, for the processes that the program starts.

One thread, so that no lock is held by a thread that the copy does not have.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from atom.utils.process_end import end_process
from tests.support.preloaded.command_line import write_command_line
from tests.support.preloaded.start_order import StartOrder, receive_order
from tests.support.preloaded.starts import use_zygote

IMPORTED = (
    "torch",
    "transformers",
    "atom.entrypoints.cli",
    "atom.entrypoints.server.run_server",
    "atom.entrypoints.server.http_process",
    "atom.model_engine.engine_core",
    "atom.model_engine.engine_core_mgr",
    "atom.model_engine.executor.tensor_parallel.executor",
    "atom.collectives.torch_group",
)
_CLONE_PARENT = 0x00008000
_CLONE_CHILD_SETTID = 0x01000000
_SYS_CLONE = 56
_PR_SET_PDEATHSIG = 1
_HIGH = 300  # above the numbers that programs are given
# Calls keep the interpreter's lock, as its own fork does.
_libc = ctypes.PyDLL(None)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(connection)


def serve(connection: socket.socket) -> NoReturn:
    """Make copies until the process that asks for them has ended."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    thread_number = _place_of_thread_number()
    connection.send(b"ready")
    while received := receive_order(connection):
        order, files = received
        child = _copy(thread_number)
        if child == 0:
            _run(order, files)
        for file in files:
            os.close(file)
        connection.send(b"%d" % child)
    os._exit(0)


def _copy(thread_number: int) -> int:
    """Fork, with our parent as the child's; 0 in the child."""
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | signal.SIGCHLD
    child = _libc.syscall(_SYS_CLONE, flags, None, None, ctypes.c_void_p(thread_number), None)
    if child == 0:
        api.PyOS_AfterFork_Child()
    else:
        api.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError("clone failed")
    return int(child)


def _place_of_thread_number() -> int:
    """Return the address at which the C library keeps this thread's number, of which its fork
    informs the copy and the bare system call does not."""
    _libc.pthread_self.restype = ctypes.c_void_p
    base = int(_libc.pthread_self())
    own = threading.get_native_id()
    for offset in range(0, 0x800, 4):
        if ctypes.c_int32.from_address(base + offset).value == own:
            return base + offset
    raise RuntimeError("the C library keeps the thread's number elsewhere")


def _run(order: StartOrder, files: list[int]) -> NoReturn:
    """Become the program of the order, in this copy."""
    _place_files(files, order.descriptors)
    order.take_over()
    own = _own_zygote()
    write_command_line([sys.executable, "-m", *order.words])
    _open_standard_streams()
    use_zygote(own)
    module, *arguments = order.words
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    _end(code)


def _open_standard_streams() -> None:
    """Open Python's streams anew: the files behind their numbers are the program's by now."""
    unbuffered = 1 if os.environ.get("PYTHONUNBUFFERED") or os.isatty(1) else -1
    for name, number, mode, buffering, errors in (
        ("stdin", 0, "r", -1, "strict"),
        ("stdout", 1, "w", unbuffered, "strict"),
        ("stderr", 2, "w", 1, "backslashreplace"),
    ):
        stream = os.fdopen(number, mode, buffering, errors=errors, closefd=False)
        setattr(sys, name, stream)


def _end(code: object) -> NoReturn:
    """End as an interpreter does, but for freeing what has been imported."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    end_process(code or 0)


def _place_files(files: list[int], numbers: Sequence[int]) -> None:
    """Give the files their numbers, and close every other."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number, inheritable=True)
    _close_all_but(numbers)


def _close_all_but(numbers: Sequence[int]) -> None:
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in numbers:
            with contextlib.suppress(OSError):  # what listed them is closed by now
                os.close(number)


def _own_zygote() -> socket.socket:
    """Make the zygote of this copy's children: a child of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        null = os.open(os.devnull, os.O_RDWR)
        _close_all_but([null, theirs.fileno()])
        for number in (0, 1, 2):
            os.dup2(null, number)
        write_command_line(["preloaded processes of", str(os.getppid())])
        serve(theirs)
    theirs.close()
    high = socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH))
    ours.close()
    assert high.recv(16) == b"ready"
    return high


if __name__ == "__main__":
    main()
