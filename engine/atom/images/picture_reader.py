"""PictureReader: clients' files to processed images, in the processes of the picture server.

The server's side of picture_server.py: starts it, sends it files from a few waiting threads, which
clients share fairly, and starts it again if it ends. Belongs to an event loop, whose other requests
go on meanwhile.
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
from functools import partial

import msgspec
import numpy as np

from atom.errors import ConfigError, EngineDeadError, RequestError
from atom.images.errors import ImageError
from atom.images.item import ImageItem
from atom.images.picture_messages import (
    PictureOrder,
    PictureReply,
    PictureSetup,
    ServerReady,
    receive_header,
    receive_into,
    send,
)
from atom.utils.fair_threads import FairThreads
from atom.utils.socket_folder import make_socket_folder

_THREADS = 2  # pictures at once; each may take the limit of memory
_SERVER_MODULE = "atom.images.picture_server"


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Bounds that a request sets. most_tokens: of one picture; longest_edge: in pixels, to which a
    larger one is reduced first; 0 for none."""

    most_tokens: int
    longest_edge: int = 0


class PictureReader:
    def __init__(self, setup: PictureSetup) -> None:
        """Starts nothing."""
        self._setup = setup
        self._threads = FairThreads(_THREADS, "pictures")
        self._server: _PictureServer | None = None
        self._lock = threading.Lock()
        self._closed = False

    async def read(self, client: str, file: bytes, limits: PictureLimits) -> ImageItem:
        """Decode and process a file, when it is the client's turn. Raises `ImageError`, and
        `RequestError` (503) if the server of pictures has ended."""
        return await self._threads.run(client, partial(self._read, file, limits), _ending)

    async def prepare(self) -> None:
        """Start the process, so that the first picture does not wait for it. Raises
        `ConfigError`."""
        await self._threads.run("", self._running, _ending)

    def close(self) -> None:
        """End the process; files that are being read are given up."""
        self._threads.close()
        with self._lock:
            self._closed = True
            if self._server is not None:
                self._server.close()

    # ---- on other threads ---------------------------------------------------------------

    def _read(self, file: bytes, limits: PictureLimits) -> ImageItem:
        return self._running().read(file, limits)

    def _running(self) -> _PictureServer:
        with self._lock:
            if self._closed:
                raise _ending()
            if self._server is not None and not self._server.alive:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = _PictureServer(self._setup)
            return self._server


class _PictureServer:
    """The running process."""

    def __init__(self, setup: PictureSetup) -> None:
        """Raises `ConfigError`."""
        self._setup = setup
        self._folder = make_socket_folder("atom-pictures-")
        self._address = str(self._folder / "socket")
        self._is_deaf = False  # its socket is gone, and it will be in a moment
        self._process = subprocess.Popen(
            [sys.executable, "-m", _SERVER_MODULE, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_without_threads(),
        )
        ready = self._shake_hands()
        if ready.error:
            self.close()
            raise ConfigError(ready.error)

    def _shake_hands(self) -> ServerReady:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: its output has the reason
            self._process.stdin.write(msgspec.json.encode(self._setup) + b"\n")
            self._process.stdin.flush()
        said = self._process.stdout.read()
        self._process.stdout.close()
        try:
            return msgspec.msgpack.decode(said, type=ServerReady)
        except msgspec.DecodeError:
            return ServerReady(
                error="images are not available on this server: the process that decodes them "
                f"ended with code {self._process.wait()} while starting; see its log above"
            )

    @property
    def alive(self) -> bool:
        return not self._is_deaf and self._process.poll() is None

    def read(self, file: bytes, limits: PictureLimits) -> ImageItem:
        """Raises `ImageError` or `RequestError`."""
        order = PictureOrder(len(file), limits.most_tokens, limits.longest_edge)
        with self._connect() as connection:
            try:
                send(connection, order, file)
                reply = receive_header(connection, PictureReply)
                if reply.refused:
                    raise ImageError(reply.refused)
                pixels = np.empty(reply.shape, dtype=np.float32)
                receive_into(connection, pixels.data.cast("B"))
            except OSError as error:  # its process was ended, by the kernel or by a crash
                raise ImageError(
                    f"decoding it takes more than {self._setup.limit_cpu_seconds} s or "
                    f"{self._setup.limit_memory_bytes >> 20} MiB; send a smaller picture"
                ) from error
        return ImageItem(reply.digest, pixels, reply.grid, reply.tokens)

    def _connect(self) -> socket.socket:
        try:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._address)
            except OSError:
                connection.close()
                raise
        except OSError as error:
            self._is_deaf = True
            raise RequestError(
                f"the process that decodes images is gone ({error}); send the request again",
                status=503,
            ) from error
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
    return {**os.environ, **dict.fromkeys(single, "1")}


def _ending() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")
