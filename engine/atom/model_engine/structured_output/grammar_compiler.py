"""GrammarCompiler: what a request asks for to a compiled grammar, beside the engine's loop.

The engine core's side of the compile server: starts it with the first grammar, asks it from a few
threads that only wait, and keeps what came back, grammars and refusals both, within a bound of
memory. The same grammar is compiled once, however many ask for it. `compile` belongs to the core's
thread; the futures it gives are done on others.
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
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerReady,
    CompilerSetup,
)
from atom.model_engine.structured_output.token_info import build_token_info
from atom.model_engine.structured_output.xgrammar_import import (
    XGrammarMissingError,
    import_xgrammar,
)
from atom.structured_outputs import GrammarSpec
from atom.utils.socket_folder import make_socket_folder

CACHE_BYTES = 256 << 20
_CACHED_REFUSALS = 256
_THREADS = 4
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
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._known: OrderedDict[GrammarSpec, Future[Any]] = OrderedDict()
        self._server: _CompileServer | None = None
        self._closed = False
        self._server_lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> Future[Any]:
        """xgrammar's CompiledGrammar, or `GrammarRefusedError`, `XGrammarMissingError` or
        `CompilerLostError`."""
        future = self._known.get(spec)
        if future is None or _failed_by_chance(future):
            self._forget_oldest()
            future = self._known[spec] = self._pool.submit(self._compile, spec)
            future.add_done_callback(lambda _: self._on_done())
        self._known.move_to_end(spec)
        return future

    def close(self) -> None:
        """End the server; compilations that run are given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._server_lock:
            self._closed = True  # a thread that waits for the lock must not start another
            if self._server is not None:
                self._server.close()

    def _forget_oldest(self) -> None:
        """Keep what is kept within its bounds; those still compiling stay."""
        done = [(spec, future) for spec, future in self._known.items() if future.done()]
        grammars = [(spec, future) for spec, future in done if future.exception() is None]
        refused = [spec for spec, future in done if future.exception() is not None]
        size_bytes = sum(future.result().memory_size_bytes for _, future in grammars)
        for spec, future in grammars:
            if size_bytes <= CACHE_BYTES:
                break
            size_bytes -= future.result().memory_size_bytes
            del self._known[spec]
        for spec in refused[: max(0, len(refused) - _CACHED_REFUSALS)]:
            del self._known[spec]

    # ---- on the pool's threads ----------------------------------------------------------------

    def _compile(self, spec: GrammarSpec) -> Any:
        with self._server_lock:
            if self._closed:
                raise CompilerLostError("the grammar compiler has ended, with its engine")
            if self._server is not None and not self._server.alive:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = _CompileServer(self._setup)
            server = self._server
        return server.compile(spec)


def _failed_by_chance(future: Future[Any]) -> bool:
    return future.done() and isinstance(future.exception(), CompilerLostError)


class _CompileServer:
    """The running process, and the vocabulary that its grammars are for."""

    def __init__(self, setup: CompilerSetup) -> None:
        """Raises `XGrammarMissingError`."""
        self._setup = setup
        self._xgrammar = import_xgrammar()
        self._folder = make_socket_folder("atom-grammar-")
        self._address = str(self._folder / "socket")
        self._process = subprocess.Popen(
            [sys.executable, "-m", _SERVER_MODULE, self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_without_threads(),
        )
        ready = self._shake_hands()
        if ready.error:
            self.close()
            raise XGrammarMissingError(ready.error)
        self._token_info = build_token_info(self._xgrammar, ready.vocabulary, setup)

    def _shake_hands(self) -> CompilerReady:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: its output will say so
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
        return self._process.poll() is None

    def compile(self, spec: GrammarSpec) -> Any:
        """Raises `GrammarRefusedError` or `CompilerLostError`."""
        try:
            reply = msgspec.msgpack.decode(self._ask(spec), type=CompileReply)
        except OSError as error:
            raise CompilerLostError(
                "the grammar compiler ended while this request waited for it; send it again"
            ) from error
        except msgspec.DecodeError:  # its process was ended, by the kernel or by a crash
            raise GrammarRefusedError(
                f"compiling it takes more than {self._setup.limit_cpu_seconds} s or "
                f"{self._setup.limit_memory_bytes >> 20} MiB; make it smaller: fewer optional "
                f"parts, and smaller repetition counts"
            ) from None
        if reply.refused:
            raise GrammarRefusedError(reply.refused)
        return self._xgrammar.CompiledGrammar.deserialize_json(reply.grammar, self._token_info)

    def _ask(self, spec: GrammarSpec) -> bytes:
        """Its answer; empty when the process that compiled did not live to give one."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._address)
            connection.sendall(msgspec.msgpack.encode(spec))
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as received:
                return received.read()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # what it ends on
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _without_threads() -> dict[str, str]:
    """Libraries must not start threads in a process that forks."""
    single = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(single, "1"), "TOKENIZERS_PARALLELISM": "false"}
