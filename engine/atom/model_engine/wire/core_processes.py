"""CoreProcesses: starts the engine processes of this node's data-parallel ranks, and reports their
ends.

Knows which devices a rank may see, and no sockets; CoreManager owns it, and a further node of cores
that share experts (nodes/cores_node.py).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from atom.config import Config
from atom.model_engine.wire.core_sockets import ClientEndpoints
from atom.model_engine.wire.first_loss import LastWords
from atom.model_engine.wire.peer_mesh import Connections, MeshOrder, mesh_sockets
from atom.utils.child_process import ChildProcess, Command

logger = logging.getLogger(__name__)

_CORE_MODULE = "atom.model_engine.core_main"
_SPIN_COUNT = "2000"  # some tens of microseconds
_DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CoreOrder(msgspec.Struct, frozen=True):
    """Give a core its endpoints, beside its configuration. mesh: None if it needs no other core."""

    clients: Sequence[ClientEndpoints]
    mesh: MeshOrder | None


class CoreProcesses:
    """The core processes of this node. `on_exit` comes from a thread of ours, unless `stop` or
    `close` was called before; it must not block for long."""

    def __init__(
        self,
        config: Config,
        clients: Sequence[ClientEndpoints],
        on_exit: Callable[[LastWords], None],
    ) -> None:
        """clients: where the cores find each, by its number."""
        self._config = config
        self._clients = clients
        self._on_exit = on_exit
        self._closing = threading.Event()
        self._children: list[ChildProcess] = []
        self._ranks: list[int] = []  # of each child

    def start(self, far: Mapping[int, Connections] | None = None) -> None:
        """Spawn all cores; returns when each has its configuration. far: by rank of this node, its
        sockets to cores of others; they are the cores' from here on."""
        parallel = self._config.parallel
        ranks = parallel.ranks_here if parallel.shares_experts else range(self._copies)
        meshes = mesh_sockets(ranks) if parallel.shares_experts else {}
        for rank, connections in (far or {}).items():
            meshes[rank].update(connections)
        for rank in ranks:
            self._start(rank, meshes.get(rank))
        # Of each pair both ends are theirs alone: one's end is the other's news.
        for connection in [connection for mesh in meshes.values() for connection in mesh.values()]:
            connection.close()

    def _start(self, rank: int, mesh: Connections | None) -> None:
        parallel = dataclasses.replace(self._config.parallel, data_parallel_rank=rank)
        config = dataclasses.replace(self._config, parallel=parallel)
        connections = {peer: connection.fileno() for peer, connection in (mesh or {}).items()}
        child = self._child(config, tuple(connections.values()))
        self._children.append(child)
        self._ranks.append(rank)
        child.start()
        child.tell(config.to_json())
        order = CoreOrder(self._clients, None if mesh is None else MeshOrder(connections))
        child.tell(msgspec.json.encode(order))

    @property
    def process_ids(self) -> list[int]:
        """List the process ids of this node's cores, by rank."""
        return [child.pid for child in self._children if child.pid is not None]

    def stop(self, timeout_seconds: float) -> None:
        """Wait for processes that were told to end, then kill the rest; no `on_exit` from here
        on."""
        self._closing.set()
        deadline = time.monotonic() + timeout_seconds
        for child in self._children:
            if not child.wait(deadline - time.monotonic()):
                # Without time to end, as while it loads, it was not expected to.
                level = logging.WARNING if timeout_seconds >= 1 else logging.DEBUG
                message = "%s did not end in %g s; killing it"
                logger.log(level, message, child.name, timeout_seconds)
                child.kill()

    def close(self) -> None:
        """Forbid further `on_exit` calls."""
        self._closing.set()

    @property
    def _copies(self) -> int:
        return self._config.parallel.data_parallel_size

    def _child(self, config: Config, descriptors: tuple[int, ...]) -> ChildProcess:
        parallel = config.parallel
        name = "the engine process"
        if self._copies > 1:
            name = f"the engine process of rank {parallel.data_parallel_rank}"
        if parallel.spans_cores:
            name = f"{name} on node {parallel.nodes.rank} ({socket.gethostname()})"
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        environment = {
            **os.environ,
            **visible_devices(config, os.environ),
            **thread_waiting(os.environ),
        }
        command = Command([sys.executable, "-m", _CORE_MODULE, level], environment, descriptors)
        return ChildProcess(name, command, self._ended)

    def _ended(self, child: ChildProcess) -> None:
        code = child.returncode
        if not self._closing.is_set() and code is not None:
            # With an exit code of its own it has informed the clients of the reason.
            rank = self._ranks[self._children.index(child)]
            words = LastWords(child.last_words, user_error=False, said=code > 0, rank=rank)
            self._on_exit(words)


def thread_waiting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return how torch's CPU threads wait for each other. By default they spin for milliseconds,
    which takes the cores from the very threads that are waited for, and from the server, wherever
    cores are shared or limited; a short spin bridges the gap between two operations as well."""
    if environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return {}
    return {"GOMP_SPINCOUNT": _SPIN_COUNT}


def visible_devices(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that show a rank its own devices only: from those that `environ` shows
    us, or else from all, rank r takes the r-th group of tensor_parallel_size. Empty if there is one
    rank, or if ranks have to reach each other's devices."""
    parallel = config.parallel
    if (
        parallel.data_parallel_size == 1
        or parallel.shares_experts
        or config.execution.device == "cpu"
    ):
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
