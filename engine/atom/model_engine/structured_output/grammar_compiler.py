"""GrammarCompiler: compiles the grammars of requests outside the engine's loop.

The engine core's side of the compile server: starts the server with the first grammar, asks it from
a few waiting threads, and caches the results, grammars and refusals both, within a bound of memory.
Equal grammars are compiled once, and clients divide the threads fairly. The processes that follow
grammars start here too. `compile` belongs to the core's thread; its futures complete on others.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerSetup,
    FollowOrder,
    ServerOrder,
)
from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.grammar_library import LibraryMissingError
from atom.structured_outputs import GrammarSpec
from atom.utils.fair_threads import FairThreads, Task
from atom.utils.fork_server.owner import (
    ForkingProgram,
    ForkServer,
    ForkServerClosedError,
    ForkServerLostError,
    ForkServerStartError,
)

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
        self._server = ForkServer(
            ForkingProgram(
                module=_SERVER_MODULE,
                setup=setup,
                folder="atom-grammar-",
                purpose="structured output is not available on this server: its compiler",
                fds=(setup.masks_fd,) if setup.masks_fd >= 0 else (),
            )
        )

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
        return self._connect(ServerOrder(follow=order))

    def _compile(self, spec: GrammarSpec) -> Grammar:
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

    def _connect(self, order: ServerOrder) -> socket.socket:
        try:
            return self._server.connect(framed(msgspec.msgpack.encode(order)))
        except ForkServerStartError as error:
            raise LibraryMissingError(str(error)) from error
        except ForkServerClosedError as error:
            raise CompilerLostError("the grammar compiler has ended, with its engine") from error
        except ForkServerLostError as error:
            raise CompilerLostError(f"{_LOST} ({error})") from error


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
