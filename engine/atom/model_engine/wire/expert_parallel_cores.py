"""ExpertParallelCores: engine processes of ranks that share experts, on this node and others.

The server's, as CoreProcesses are on one node: waits for the processes of the other nodes
(OtherNodes), connects the cores to each other (cross_node_wakeup.py), starts this node's, and says
when anything of it ends. Belongs to CoreManager on the first node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.wire.core_processes import CoreProcesses
from atom.model_engine.wire.core_sockets import ClientEndpoints
from atom.model_engine.wire.cross_node_wakeup import connect_other_nodes
from atom.model_engine.wire.first_loss import FirstLoss, LastWords
from atom.model_engine.wire.other_nodes import ClientPorts, CoresWork, OtherNodes
from atom.model_engine.wire.peer_mesh import Connections

logger = logging.getLogger(__name__)


class ExpertParallelCores:
    """The core processes of all nodes, which share experts. `on_exit` comes once at most, from a
    thread of ours, unless `close` was called before; it must not block for long."""

    def __init__(
        self,
        config: Config,
        clients: Sequence[ClientEndpoints],
        on_exit: Callable[[LastWords], None],
    ) -> None:
        """clients: the addresses of each for cores of this node, by its number; `listens` adds
        those for other nodes. Raises `ConfigError`."""
        place = config.parallel.nodes
        if place.rank:
            raise ConfigError(
                f"node_rank {place.rank}: a further node is run by `atom serve` alone"
            )
        self._parallel = config.parallel
        self._loss = FirstLoss(on_exit)
        self._nodes = OtherNodes(config, self._loss)
        self._cores = CoreProcesses(config, clients, self._loss.tell)
        self._ports: dict[int, ClientPorts] = {}
        self._clients = len(clients)
        self._changes = threading.Condition()  # of the ports; and no start while it is closed
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)

    def start(self) -> None:
        """Begin to wait for the others; returns at once."""
        self._thread.start()

    def listens(self, client: int, ports: ClientPorts) -> None:
        """Register where a client listens to other nodes; the nodes get their order when all
        have."""
        with self._changes:
            self._ports[client] = ports
            self._changes.notify()

    @property
    def process_ids(self) -> list[int]:
        """List the process ids of this node's cores, by rank."""
        return self._cores.process_ids

    def give_reason(self, message: str) -> None:
        """Let the other nodes report why the group cannot continue."""
        self._nodes.give_reason(message)

    def close(self) -> None:
        """Forbid further `on_exit` calls, here and on the other nodes: cores are told to end."""
        with self._changes:
            self._loss.let_end()
            self._changes.notify()
        self._nodes.stop_listening()
        self._nodes.close()
        self._cores.close()

    def stop(self, timeout_seconds: float) -> None:
        """Wait for processes that were told to end, then kill the rest."""
        self._cores.stop(timeout_seconds)
        self._nodes.wait_gone(timeout_seconds)

    def _run(self) -> None:
        try:
            with self._changes:
                self._changes.wait_for(self._is_told)
                clients = [ports for _, ports in sorted(self._ports.items())]
            if not self._loss.is_closing():
                self._nodes.meet(CoresWork(clients))
                self._start(connect_other_nodes(self._parallel, (), self._nodes.listener))
        except OSError as error:
            self._loss.tell(LastWords(f"the other nodes cannot be waited for: {error}", False))

    def _is_told(self) -> bool:
        return len(self._ports) == self._clients or self._loss.is_closing()

    def _start(self, far: Mapping[int, Connections]) -> None:
        with self._changes:
            if self._loss.is_closing():
                return
            self._nodes.stop_listening()
            self._cores.start(far)
