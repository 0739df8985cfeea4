"""CompilerProcess: a fork of the engine's process that compiles kernels into Triton's cache.

Triton's front end is Python: threads of one process take turns in it, together with the thread that
finds the specialisations. A fork already has torch, the kernels' modules and Triton's digest of
itself in memory, and only pays for the pages that it changes. It compiles and links, never uses the
card, and runs no other code of its parent. It compiles for the card that Triton named before the
fork. It ends with its parent: by the kernel's signal, and by the pipe.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from triton.runtime import driver
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from atom.utils.parent_watch import end_with_parent

# No specialisation takes so long on a core that it shares with others; one that hangs must not hold
# a start.
_PATIENCE_SECONDS = 30.0
_fork = multiprocessing.get_context("fork")


class CompilerLostError(Exception):
    """A process ended, or hung, before it said what became of a specialisation."""


@dataclass(frozen=True, slots=True)
class Specialisation:
    """A specialisation of a kernel. module, kernel: the place of the JITFunction; data: Triton's
    description of the specialisation, for its own `preload`."""

    module: str
    kernel: str
    data: str

    def compile(self) -> None:
        """Compile the kernel and its launcher, or find both in Triton's cache. Raises the
        compiler's errors."""
        function: JITFunction[Any] = getattr(import_module(self.module), self.kernel)
        made: Any = function.preload(self.data)
        # With Triton 3.6 a module in C for each signature, which a first launch would wait for.
        driver.active.launcher_cls(made.src, made.metadata)


class CompilerProcess:
    """A process that compiles kernels for one thread at a time."""

    def __init__(self, card: NamedCard, elders: Sequence[CompilerProcess]) -> None:
        """elders: the processes started before; this one closes its copies of their pipes."""
        self._pipe, theirs = _fork.Pipe()
        inherited = [self._pipe, *(elder._pipe for elder in elders)]
        self._process = _fork.Process(target=_serve, args=(theirs, inherited, card), daemon=True)
        with theirs:
            self._process.start()

    def compile(self, specialisation: Specialisation) -> str | None:
        """Compile the specialisation into the cache on disk; return the error, or None. Raises
        `CompilerLostError`."""
        try:
            self._pipe.send(specialisation)
            if not self._pipe.poll(_PATIENCE_SECONDS):
                self._process.kill()
                lost = f"{specialisation.kernel} took over {_PATIENCE_SECONDS:.0f} s"
                raise CompilerLostError(lost)
            error: str | None = self._pipe.recv()
        except (OSError, EOFError) as gone:
            self._process.join()
            code = self._process.exitcode
            raise CompilerLostError(
                f"the process of {specialisation.kernel} ended with code {code}"
            ) from gone
        return error

    def end(self) -> None:
        """Kill the process immediately."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def start_compilers(count: int) -> list[CompilerProcess]:
    """Start `count` forks of this process, which end with the calling thread. Raises any error of
    Triton or the machine."""
    prepare_triton().result()
    card, started = NamedCard(), list[CompilerProcess]()
    try:
        for _ in range(count):
            started.append(CompilerProcess(card, started))
    except BaseException:
        for process in started:
            process.end()
        raise
    return started


@cache
def prepare_triton() -> Future[None]:
    """Begin the work that the first access to Triton's cache needs: a digest of its library of some
    hundred MB, and with an empty cache a C module."""
    pool = ThreadPoolExecutor(1, "triton")
    try:
        return pool.submit(_prepare)
    finally:
        pool.shutdown(wait=False)


def _prepare() -> None:
    triton_key()
    assert driver.active is not None  # made by this look


class NamedCard:
    """Triton's driver with the answers from before the fork: a fork must not use the card."""

    def __init__(self) -> None:
        self._driver: Any = driver.active
        self._target = self._driver.get_current_target()
        self._device = self._driver.get_current_device()

    def get_current_target(self) -> object:
        return self._target

    def get_current_device(self) -> int:
        device: int = self._device
        return device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def _serve(pipe: Connection, inherited: Sequence[Connection], card: NamedCard) -> None:
    """Run the child: compile the specialisations that the parent sends."""
    end_with_parent()
    # An interrupt is the parent's to answer; Python ends children that are left by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # this process must not release the parent's resources
    for other in inherited:
        other.close()
    driver.set_active(card)
    while True:
        try:
            specialisation: Specialisation = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(_failure(specialisation))


def _failure(specialisation: Specialisation) -> str | None:
    try:
        specialisation.compile()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
