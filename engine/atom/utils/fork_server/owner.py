"""ForkServer: the side of the program that asks a forking process, and starts it again if it ends.

The first question starts the process. Every question is a connection, which a child of the process
answers. Any thread may ask.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

import msgspec

from atom.errors import AtomError
from atom.utils.fork_server.process import ServerReady
from atom.utils.socket_folder import make_socket_folder


class ForkServerStartError(AtomError):
    """The process cannot serve; the message is the reason."""


class ForkServerLostError(AtomError):
    """The process cannot be reached; the next question starts another."""


class ForkServerClosedError(AtomError):
    """The program has closed its server."""


@dataclass(frozen=True, slots=True)
class ForkingProgram:
    """The program of the process. module: that `python -m` runs; setup: its first line of standard
    input, as JSON; folder: prefix of the name of its socket's folder; purpose: the subject of
    the sentence "… ended while starting"; fds: descriptors that it inherits."""

    module: str
    setup: msgspec.Struct
    folder: str
    purpose: str
    fds: tuple[int, ...] = ()


class ForkServer:
    def __init__(self, program: ForkingProgram) -> None:
        """Starts nothing."""
        self._program = program
        self._process: _Process | None = None
        self._lock = threading.Lock()
        self._closed = False

    def prepare(self) -> None:
        """Start the process, so that the first question does not wait for it. Raises
        `ForkServerStartError`, `ForkServerClosedError` and `ConfigError`."""
        self._running()

    def connect(self, first: bytes = b"") -> socket.socket:
        """Return the connection of a new child, to which the first bytes were sent. Raises
        `ForkServerLostError` and the errors of `prepare`."""
        return self._running().connect(first)

    def close(self) -> None:
        """End the process. Its children end by themselves."""
        with self._lock:
            self._closed = True  # a thread that waits for the lock must not start another
            if self._process is not None:
                self._process.close()

    def _running(self) -> _Process:
        with self._lock:
            if self._closed:
                raise ForkServerClosedError(f"{self._program.module} was closed")
            if self._process is not None and not self._process.alive:
                self._process.close()
                self._process = None
            if self._process is None:
                self._process = _Process(self._program)
            return self._process


class _Process:
    """The running process."""

    def __init__(self, program: ForkingProgram) -> None:
        """Raises `ForkServerStartError`."""
        self._folder = make_socket_folder(program.folder)
        self._address = str(self._folder / "socket")
        self._is_deaf = False  # its socket is gone, and it will be in a moment
        self._process = subprocess.Popen(
            [sys.executable, "-m", program.module, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_without_threads(),
            pass_fds=program.fds,
        )
        reason = self._shake_hands(program)
        if reason:
            self.close()
            raise ForkServerStartError(reason)

    def _shake_hands(self, program: ForkingProgram) -> str:
        """Return why the fork server cannot serve; empty if it serves."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: its output has the reason
            self._process.stdin.write(msgspec.json.encode(program.setup) + b"\n")
            self._process.stdin.flush()
        said = self._process.stdout.read()
        self._process.stdout.close()
        try:
            return msgspec.msgpack.decode(said, type=ServerReady).error
        except msgspec.DecodeError:
            code = self._process.wait()
            return f"{program.purpose} ended with code {code} while starting; see its log above"

    @property
    def alive(self) -> bool:
        return not self._is_deaf and self._process.poll() is None

    def connect(self, first: bytes) -> socket.socket:
        """Raises `ForkServerLostError`."""
        try:
            connection = socket.socket(socket.AF_UNIX)
        except OSError as error:  # no descriptor is left
            raise ForkServerLostError(str(error)) from error
        try:
            connection.connect(self._address)
            connection.sendall(first)
        except OSError as error:
            connection.close()
            # A process that ends closes its sockets before others can see that it has ended: on a
            # busy machine long before, in which it would be asked in vain again and again.
            self._is_deaf = True
            raise ForkServerLostError(str(error)) from error
        return connection

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # which ends it
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _without_threads() -> dict[str, str]:
    """Return an environment in which libraries start no threads, since the process forks."""
    single = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(single, "1"), "TOKENIZERS_PARALLELISM": "false"}
