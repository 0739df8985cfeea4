"""Starts of the product's programs: `subprocess.Popen` gets copies of a zygote where it can.

`preloaded_starts` switches a test run to copies, and `use_zygote` a copy, for its own children.
Popen keeps all its ways but how the process comes to be: the pipes, the wait and the signals are
its own.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.preloaded.command_line import ROOM
from tests.support.preloaded.start_order import MOST_FILES, StartOrder, send_order

_ZYGOTE = "tests.support.preloaded.zygote"
_ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = frozenset(
    {
        "atom.entrypoints.cli",
        "atom.entrypoints.openai_server",
        "atom.entrypoints.server.api_process",
        "atom.model_engine.core_main",
        "atom.model_engine.executor.nodes.node_main",
        "atom.model_engine.executor.tensor_parallel.rank_main",
        "benchmarks.peers.offline",
        "tests.support.preloaded.echo",
        "tests.support.preloaded.script",
        "tests.support.ranks.expert_group",
        "tests.support.ranks.rank_group",
    }
)
# Variables that no import reads, or sets itself; PYTHONPATH is compared by its folders.
_READ_LATER = (
    *("ATOM_", "PYTEST_", "PYTHONPATH", "OTEL_", "AWS_", "POD_", "KUBERNETES_"),
    *("CC", "GLOO_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("TRITON_CACHE_DIR", "TRITON_DEFAULT_FP_FUSION"),
)
# Of Popen's options, those that a copy cannot have.
_PLAIN = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "start_new_session": False,
    "process_group": -1,
}
# Of the limits of a process, those that a copy has from the zygote.
_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CORE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)
_LEAST_OPEN_FILES = 1024
_plain_execute: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_plain_execute)


class _Source:
    """The zygote of this process: started with the first copy, from a thread that stays, since the
    end of the thread that started it would end it and all its copies."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._environment = dict(os.environ)
        self._limits = _limits()
        self.is_paused = False
        self.copies = 0

    def pid_of_copy(self, order: StartOrder, files: Sequence[int]) -> int | None:
        """Return the process of a new copy, or None if there can be none."""
        few = order.open_files[0] < _LEAST_OPEN_FILES
        if few or _limits() != self._limits or not self._can_copy(order.environment):
            return None
        with self._lock:
            if self._connection is None:
                self._connection = _start_zygote(self._environment)
            try:
                send_order(self._connection, order, files)
                pid = int(self._connection.recv(16) or b"0")
            except OSError:
                pid = 0
            self.copies += pid > 0
            return pid or None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _can_copy(self, environment: Mapping[str, str]) -> bool:
        own, other = self._environment.items(), environment.items()
        if any(not name.startswith(_READ_LATER) for name, _ in own ^ other):
            return False
        folders = environment.get("PYTHONPATH", "").split(os.pathsep)
        return all(not folder or folder in sys.path for folder in folders)


_source: _Source | None = None


@contextlib.contextmanager
def preloaded_starts() -> Iterator[None]:
    """Start the product's programs as copies meanwhile."""
    global _source
    _source = _Source()
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _plain_execute  # type: ignore[attr-defined]
        _source.close()
        _source = None


def use_zygote(connection: socket.socket) -> None:
    """Start this process's children as copies from here on."""
    global _source
    _source = _Source(connection)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def pause(is_paused: bool) -> None:
    """Choose plain starts, or copies again; nothing in a run without copies."""
    if _source is not None:
        _source.is_paused = is_paused


def copies() -> int:
    """Return how many copies this process has started."""
    return 0 if _source is None else _source.copies


def _execute_child(process: Any, *positional: Any, **named: Any) -> None:
    """Stand in for Popen's own method of this name."""
    options = _parameters.bind(process, *positional, **named).arguments
    pid = None
    if _source is not None and not _source.is_paused and _is_for_copies(options):
        pipes = [options[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if pipe < 0 else pipe for number, pipe in enumerate(pipes)]
        files += options["pass_fds"]
        pid = _source.pid_of_copy(_order_of(options), files)
    if pid is None:
        _plain_execute(process, *positional, **named)
        return
    process.pid = pid
    process._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(options[name] for name in ends))


def _is_for_copies(options: Mapping[str, Any]) -> bool:
    args = options["args"]
    if not isinstance(args, list | tuple) or list(args[:2]) != [sys.executable, "-m"]:
        return False
    if args[2] not in PROGRAMS or len(options["pass_fds"]) > MOST_FILES - 3:
        return False
    return all(options.get(name, plain) == plain for name, plain in _PLAIN.items())


def _order_of(options: Mapping[str, Any]) -> StartOrder:
    environment = os.environ if options["env"] is None else options["env"]
    return StartOrder.like_this_process(
        [os.fspath(word) for word in options["args"][2:]],
        dict(environment),
        os.fspath(options["cwd"] or Path.cwd()),
        [0, 1, 2, *options["pass_fds"]],
    )


def _start_zygote(environment: Mapping[str, str]) -> socket.socket:
    """Start the zygote; return when it has imported what it is for."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    started = threading.Event()

    def start_and_stay() -> None:
        words = [sys.executable, "-m", _ZYGOTE, str(theirs.fileno()), ROOM]
        path = os.pathsep.join(folder for folder in sys.path if folder)
        process = subprocess.Popen(
            words,
            pass_fds=[theirs.fileno()],
            env={**environment, "PYTHONPATH": path},
            cwd=_ROOT,
        )
        theirs.close()
        started.set()
        process.wait()

    threading.Thread(target=start_and_stay, name="zygote", daemon=True).start()
    started.wait()
    if ours.recv(16) != b"ready":
        raise RuntimeError("the process that is to be copied has ended; its output says why")
    return ours


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(limit) for limit in _LIMITS]
