"""CoreProcesses: starts one engine process per data-parallel rank, and says when one ends.

Each process has a thread that starts it and then waits for it: the operating system tells us of its
death at once, nothing polls, and the kernel's parent-death signal is tied to a thread that lives as
long as the child. Knows no sockets; CoreManager owns it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from atom.config import Config

logger = logging.getLogger(__name__)

_CORE_MODULE = "atom.model_engine.core_main"
_DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_OUT_OF_MEMORY_SIGNAL = 9


class CoreProcesses:
    """`on_exit(rank, returncode, last words)` comes from a thread of ours, unless `stop` was called
    before; it must not block."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        clients: int,
        on_exit: Callable[[int, int, str], None],
    ) -> None:
        """folder: where the clients' sockets are; clients: how many there are."""
        self._config = config
        self._folder = folder
        self._clients = clients
        self._on_exit = on_exit
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def start(self) -> None:
        """Spawn all; returns when each has its configuration."""
        for rank in range(self._config.parallel.data_parallel_size):
            spawned = threading.Event()
            thread = threading.Thread(
                target=self._run, args=(rank, spawned), name=f"core-{rank}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
            spawned.wait()

    @property
    def process_ids(self) -> list[int]:
        return [self._processes[rank].pid for rank in sorted(self._processes)]

    def stop(self, timeout_seconds: float) -> None:
        """Wait for processes that were told to end, then make them; no `on_exit` from here on."""
        self._closing.set()
        deadline = time.monotonic() + timeout_seconds
        for rank, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning(
                    "engine process %d did not end in %.0f s; killing it", rank, timeout_seconds
                )
                process.kill()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Forbid further `on_exit` calls."""
        self._closing.set()

    def _run(self, rank: int, spawned: threading.Event) -> None:
        try:
            process = self._spawn(rank)
        except OSError as error:
            self._on_exit(rank, 1, f"the engine process could not be started: {error}")
            return
        finally:
            spawned.set()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        if not self._closing.is_set():
            self._on_exit(rank, process.returncode, self._last_words(rank, process))

    def _spawn(self, rank: int) -> subprocess.Popen[bytes]:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        parallel = dataclasses.replace(self._config.parallel, data_parallel_rank=rank)
        config = dataclasses.replace(self._config, parallel=parallel)
        process = subprocess.Popen(
            [sys.executable, "-m", _CORE_MODULE, str(self._folder), str(self._clients), level],
            stdin=subprocess.PIPE,
            env={**os.environ, **visible_devices(config, os.environ)},
        )
        self._processes[rank] = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # died already: waiting for it will tell
            process.stdin.write(config.to_json() + b"\n")
            process.stdin.flush()
        return process

    def _last_words(self, rank: int, process: subprocess.Popen[bytes]) -> str:
        ranks = self._config.parallel.data_parallel_size
        who = f"the engine process (pid {process.pid})"
        if ranks > 1:
            who = f"the engine process of rank {rank} (pid {process.pid})"
        code = process.returncode
        if code < 0:
            hint = " (out of memory?)" if -code == _OUT_OF_MEMORY_SIGNAL else ""
            return f"{who} was killed by signal {-code}{hint}"
        return f"{who} ended with code {code}; see its log above"


def visible_devices(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that show a rank its own devices only: of those that `environ` shows us, or else of
    all, rank r takes the r-th group of tensor_parallel_size. Nothing where there is one rank."""
    parallel = config.parallel
    if parallel.data_parallel_size == 1 or config.device == "cpu":
        return {}
    size = parallel.tensor_parallel_size
    first = parallel.data_parallel_rank * size
    given = {name: environ[name] for name in _DEVICE_VARIABLES if environ.get(name)}
    if not given:
        own = ",".join(str(index) for index in range(first, first + size))
        return dict.fromkeys(_DEVICE_VARIABLES, own)
    return {
        # Fewer than are needed leave a rank with none, which it reports in its own words.
        name: ",".join([text.strip() for text in listed.split(",")][first : first + size])
        for name, listed in given.items()
    }
