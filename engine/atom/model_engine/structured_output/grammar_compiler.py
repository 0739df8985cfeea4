"""GrammarCompiler: compiles the grammars of requests outside the engine's loop.

The engine core's side of the compile server: starts the server with the first grammar, asks it from
a few waiting threads, and caches the results, grammars and refusals both, within a bound of memory.
Equal grammars are compiled once, and clients divide the threads fairly. The processes that follow
grammars start here too. `compile` belongs to the core's thread; its futures complete on others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerReady,
    CompilerSetup,
    FollowOrder,
    ServerOrder,
)
from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.grammar_library import LibraryMissingError
from atom.structured_outputs import GrammarSpec
from atom.utils.fair_threads import FairThreads, Task
from atom.utils.socket_folder import make_socket_folder

CACHE_BYTES = 256 << 20
_CACHED_REFUSALS = 256
_THREADS = 4
_LOST = "the grammar compiler ended while this request waited for it; send it again"
_SERVER_MODULE = "atom.model_engine.structured_output.compile_server"


class GrammarRefusedError(AtomError):
    """The grammar cannot be compiled, or not within the bounds; the message is the reason."""


class CompilerLostError(AtomError):
    """The compile server ended on its own; the next grammar starts another."""


class GrammarCompiler:
    def __init__(self, setup: CompilerSetup, on_done: Callable[[], None]) -> None:
        """on_done: called from a thread of the compiler when a grammar is there, or refused."""
        self._setup = setup
        self._on_done = on_done
        self._threads = FairThreads(_THREADS, "grammar")
        self._known: OrderedDict[GrammarSpec, _Compilation] = OrderedDict()
        self._server: _CompileServer | None = None
        self._closed = False
        self._server_lock = threading.Lock()

    def compile(self, spec: GrammarSpec, client: str) -> Future[Grammar]:
        """Return the compiled grammar, or `GrammarRefusedError`, `LibraryMissingError` or
        `CompilerLostError`. client: whose turn it takes."""
        known = self._known.get(spec)
        if known is None or _failed_by_chance(known.future):
            self._forget_oldest()
            known = self._known[spec] = _Compilation(Task(partial(self._compile, spec)), set())
            known.future.add_done_callback(lambda _: self._on_done())
        if client not in known.clients and not known.future.done():
            # Also in this client's turn: the first client may have many others before it.
            known.clients.add(client)
            self._threads.submit(client, known.task)
        self._known.move_to_end(spec)
        return known.future

    def close(self) -> None:
        """End the server; compilations that run are given up."""
        self._threads.close()
        with self._server_lock:
            self._closed = True  # a thread that waits for the lock must not start another
            if self._server is not None:
                self._server.close()

    def _forget_oldest(self) -> None:
        """Evict the oldest grammars and refusals beyond the cache's bounds; running compilations
        stay."""
        done = [(spec, known.future) for spec, known in self._known.items() if known.future.done()]
        grammars = [(spec, future) for spec, future in done if future.exception() is None]
        refused = [spec for spec, future in done if future.exception() is not None]
        size_bytes = sum(future.result().size_bytes for _, future in grammars)
        for spec, future in grammars:
            if size_bytes <= CACHE_BYTES:
                break
            size_bytes -= future.result().size_bytes
            del self._known[spec]
        for spec in refused[: max(0, len(refused) - _CACHED_REFUSALS)]:
            del self._known[spec]

    # ---- on other threads ----------------------------------------------------------------

    def open_process(self, order: FollowOrder) -> socket.socket:
        """Return the connection of a new process that follows a grammar. Raises
        `LibraryMissingError` or `CompilerLostError`."""
        return self._running_server().follow(order)

    def _compile(self, spec: GrammarSpec) -> Grammar:
        return self._running_server().compile(spec)

    def _running_server(self) -> _CompileServer:
        with self._server_lock:
            if self._closed:
                raise CompilerLostError("the grammar compiler has ended, with its engine")
            if self._server is not None and not self._server.alive:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = _CompileServer(self._setup)
            return self._server


@dataclass(frozen=True, slots=True)
class _Compilation:
    """A compilation that was begun. clients: in whose turns it may come."""

    task: Task
    clients: set[str]

    @property
    def future(self) -> Future[Grammar]:
        return self.task.future


def _failed_by_chance(future: Future[Grammar]) -> bool:
    return future.done() and isinstance(future.exception(), CompilerLostError)


class _CompileServer:
    """The running process."""

    def __init__(self, setup: CompilerSetup) -> None:
        """Raises `LibraryMissingError`."""
        self._setup = setup
        self._folder = make_socket_folder("atom-grammar-")
        self._address = str(self._folder / "socket")
        self._is_deaf = False  # its socket is gone, and it will be in a moment
        self._process = subprocess.Popen(
            [sys.executable, "-m", _SERVER_MODULE, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_without_threads(),
            pass_fds=[setup.masks_fd] if setup.masks_fd >= 0 else [],
        )
        ready = self._shake_hands()
        if ready.error:
            self.close()
            raise LibraryMissingError(ready.error)

    def _shake_hands(self) -> CompilerReady:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: its output has the reason
            self._process.stdin.write(msgspec.json.encode(self._setup) + b"\n")
            self._process.stdin.flush()
        said = self._process.stdout.read()
        self._process.stdout.close()
        try:
            return msgspec.msgpack.decode(said, type=CompilerReady)
        except msgspec.DecodeError:
            code = self._process.wait()
            return CompilerReady(
                error=f"structured output is not available on this server: its compiler ended "
                f"with code {code} while starting; see its log above"
            )

    @property
    def alive(self) -> bool:
        return not self._is_deaf and self._process.poll() is None

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises `GrammarRefusedError` or `CompilerLostError`."""
        with self._connect(ServerOrder(compile=spec)) as connection:
            try:
                answer = FrameReader(connection).wait()
            except OSError as error:
                raise CompilerLostError(_LOST) from error
        if answer is None:  # its process was ended, by the kernel or by a crash
            raise GrammarRefusedError(
                f"compiling it takes more than {self._setup.limit_cpu_seconds} s or "
                f"{self._setup.limit_memory_bytes >> 20} MiB; make it smaller: fewer optional "
                f"parts, and smaller repetition counts"
            )
        reply = msgspec.msgpack.decode(answer, type=CompileReply)
        if reply.refused:
            raise GrammarRefusedError(reply.refused)
        return Grammar(reply.grammar)

    def follow(self, order: FollowOrder) -> socket.socket:
        """Return the connection of a new process that does. Raises `CompilerLostError`."""
        return self._connect(ServerOrder(follow=order))

    def _connect(self, order: ServerOrder) -> socket.socket:
        try:
            connection = socket.socket(socket.AF_UNIX)
        except OSError as error:  # no descriptor is left
            raise CompilerLostError(f"{_LOST} ({error})") from error
        try:
            connection.connect(self._address)
            connection.sendall(framed(msgspec.msgpack.encode(order)))
        except OSError as error:
            connection.close()
            # A process that ends closes its sockets before others can see that it has ended: on a
            # busy machine long before, in which it would be asked in vain again and again.
            self._is_deaf = True
            raise CompilerLostError(_LOST) from error
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
