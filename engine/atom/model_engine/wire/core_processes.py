"""CoreProcesses: starts one engine process per data-parallel rank, and says when one ends.

Knows which devices a rank may see, and no sockets; CoreManager owns it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from atom.config import Config
from atom.model_engine.wire.peer_mesh import MeshOrder, mesh_sockets
from atom.utils.child_process import ChildProcess

logger = logging.getLogger(__name__)

_CORE_MODULE = "atom.model_engine.core_main"
_SPIN_COUNT = "2000"  # some tens of microseconds
_DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CoreProcesses:
    """`on_exit(returncode, last words)` comes from a thread of ours, unless `stop` or `close` was
    called before; it must not block for long."""

    def __init__(
        self, config: Config, folder: Path, clients: int, on_exit: Callable[[int, str], None]
    ) -> None:
        """folder: where the clients' sockets are; clients: how many there are."""
        self._config = config
        self._folder = folder
        self._clients = clients
        self._on_exit = on_exit
        self._closing = threading.Event()
        self._children: list[ChildProcess] = []

    def start(self) -> None:
        """Spawn all; returns when each has its configuration."""
        size = self._config.parallel.data_parallel_size
        meshes = mesh_sockets(size if self._config.parallel.shares_experts else 0)
        for rank in range(size):
            parallel = dataclasses.replace(self._config.parallel, data_parallel_rank=rank)
            config = dataclasses.replace(self._config, parallel=parallel)
            bells = {peer: bell.fileno() for peer, bell in meshes[rank].items()} if meshes else {}
            child = self._child(config, tuple(bells.values()))
            self._children.append(child)
            child.start()
            child.tell(config.to_json())
            if bells:
                child.tell(msgspec.json.encode(MeshOrder(bells)))
        # Of each pair both ends are theirs alone: one's end is the other's news.
        for bell in [bell for mesh in meshes for bell in mesh.values()]:
            bell.close()

    @property
    def process_ids(self) -> list[int]:
        return [child.pid for child in self._children if child.pid is not None]

    def stop(self, timeout_seconds: float) -> None:
        """Wait for processes that were told to end, then make them; no `on_exit` from here on."""
        self._closing.set()
        deadline = time.monotonic() + timeout_seconds
        for rank, child in enumerate(self._children):
            if not child.wait(deadline - time.monotonic()):
                # Without time to end, as while it loads, it was not expected to.
                level = logging.WARNING if timeout_seconds >= 1 else logging.DEBUG
                message = "engine process %d did not end in %g s; killing it"
                logger.log(level, message, rank, timeout_seconds)
                child.kill()

    def close(self) -> None:
        """Forbid further `on_exit` calls."""
        self._closing.set()

    def _child(self, config: Config, descriptors: tuple[int, ...]) -> ChildProcess:
        parallel = config.parallel
        name = "the engine process"
        if parallel.data_parallel_size > 1:
            name = f"the engine process of rank {parallel.data_parallel_rank}"
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        return ChildProcess(
            name,
            [sys.executable, "-m", _CORE_MODULE, str(self._folder), str(self._clients), level],
            self._ended,
            environment={
                **os.environ,
                **visible_devices(config, os.environ),
                **thread_waiting(os.environ),
            },
            pass_fds=descriptors,
        )

    def _ended(self, child: ChildProcess) -> None:
        code = child.returncode
        if not self._closing.is_set() and code is not None:
            self._on_exit(code, child.last_words)


def thread_waiting(environ: Mapping[str, str]) -> dict[str, str]:
    """How torch's CPU threads wait for each other. By default they spin for milliseconds, which
    takes the cores from the very threads that are waited for, and from the server, wherever cores
    are shared or limited; a short spin bridges the gap between two operations as well."""
    if environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return {}
    return {"GOMP_SPINCOUNT": _SPIN_COUNT}


def visible_devices(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that show a rank its own devices only: of those that `environ` shows us, or else of
    all, rank r takes the r-th group of tensor_parallel_size. Nothing where there is one rank, or
    where ranks are to reach each other's devices."""
    parallel = config.parallel
    if parallel.data_parallel_size == 1 or parallel.shares_experts or config.device == "cpu":
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
