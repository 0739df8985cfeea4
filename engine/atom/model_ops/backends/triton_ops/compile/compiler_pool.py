"""CompilerPool: compile specialisations of kernels concurrently, in processes, or else in threads.

A thread for each process hands it one specialisation after the other. If processes fail at a
specialisation that this process can compile, the threads compile from then on, so a start is never
slower than with threads alone. Threads of this process wait for its interpreter; Triton's passes
hold no lock, and its assembler is a process.
"""

from __future__ import annotations

import ast
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import torch
from triton.runtime.jit import JITCallable

from atom.model_ops.backends.triton_ops.compile.compiler_process import (
    CompilerLostError,
    CompilerProcess,
    Specialisation,
    start_compilers,
)

logger = logging.getLogger(__name__)

# A start has some sixty specialisations, and its own thread waits for each fork.
_MOST_WORKERS = 16


class CompilerPool:
    def __init__(self, device: torch.device, workers: int) -> None:
        """workers: cores to keep busy."""
        self.workers = min(workers, _MOST_WORKERS)
        self._device = device
        self._own = threading.local()
        self._begun: dict[Specialisation, Future[None]] = {}
        self._processes = self._start_processes()
        self._idle: SimpleQueue[CompilerProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._apart, self._choice = bool(self._processes), threading.Lock()
        self._pool = ThreadPoolExecutor(self.workers, "compile", self._enter_thread)
        self._parse = JITCallable.parse
        JITCallable.parse = _by_turns(self._parse)

    @property
    def count(self) -> int:
        """Return the number of specialisations that were to be compiled."""
        return len(self._begun)

    @property
    def means(self) -> str:
        """Describe the compilers for people: their number, and whether they are processes or
        threads."""
        return f"{self.workers} {'processes' if self._apart else 'threads'}"

    @property
    def is_calling(self) -> bool:
        """Return whether this thread is one of the compiling threads."""
        return getattr(self._own, "compiles", False)

    def compile(self, specialisation: Specialisation) -> None:
        """Begin to compile the specialisation, unless that was begun before."""
        if specialisation not in self._begun:
            self._begun[specialisation] = self._pool.submit(self._compile, specialisation)

    def wait(self) -> None:
        """Wait until all is compiled that can be."""
        self._end(at_once=False)
        for specialisation, done in self._begun.items():
            if (error := done.exception()) is not None:  # the call that needs it reports it, too
                logger.warning("%s was not compiled ahead: %s", specialisation.kernel, error)

    def give_up(self) -> None:
        self._end(at_once=True)

    def _start_processes(self) -> list[CompilerProcess]:
        if os.environ.get("ATOM_COMPILE_AHEAD") == "threads":
            return []
        try:
            return start_compilers(self.workers)
        except Exception as error:
            logger.warning("kernels are compiled by threads: no process for them: %r", error)
            return []

    def _compile(self, specialisation: Specialisation) -> None:
        """Compile on a thread of the pool."""
        failure = self._failure_apart(specialisation) if self._apart else "by threads"
        if failure is None:
            return
        specialisation.compile()
        with self._choice:  # the others must be able to compile what this process can
            is_first, self._apart = self._apart, False
        if is_first:
            logger.warning("kernels are compiled by threads from here on: %s", failure)

    def _failure_apart(self, specialisation: Specialisation) -> str | None:
        process = self._idle.get()
        try:
            return process.compile(specialisation)
        except CompilerLostError as error:
            return str(error)
        finally:
            self._idle.put(process)

    def _end(self, at_once: bool) -> None:
        self._pool.shutdown(cancel_futures=at_once)
        for process in self._processes:
            process.end()
        JITCallable.parse = self._parse

    def _enter_thread(self) -> None:
        self._own.compiles = True
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)


def _by_turns(parse: Callable[[JITCallable], ast.AST]) -> Callable[[JITCallable], ast.AST]:
    """Wrap `parse` so that kernels' sources are parsed one after the other. Python 3.11 keeps one
    depth of syntax trees for all threads, and raises SystemError in the thread that finds it
    changed."""
    turn = threading.Lock()

    def parse_alone(function: JITCallable) -> ast.AST:
        with turn:
            return parse(function)

    return parse_alone
