"""CoresNode: engine cores that share experts, on a node that serves no requests.

The cores communicate with the first node's clients and with the other cores themselves; this class
starts and watches them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import msgspec

from atom.config import Config
from atom.model_engine.executor.nodes.further_node import END_SECONDS, FurtherNode
from atom.model_engine.wire.core_processes import CoreProcesses
from atom.model_engine.wire.cross_node_wakeup import connect_other_nodes
from atom.model_engine.wire.first_loss import LastWords
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.model_engine.wire.node_ports import far_endpoints
from atom.model_engine.wire.other_nodes import ClientPorts, NodeAddress


class CoresNode(FurtherNode):
    def __init__(self, config: Config, link: NodeLink, listener: socket.socket) -> None:
        """listener: where nodes of a higher rank call."""
        super().__init__(link)
        self._parallel = config.parallel
        self._config = config
        self._listener = listener
        self._cores: CoreProcesses

    def run(self, clients: Sequence[ClientPorts], others: Sequence[NodeAddress]) -> int:
        """Run this node's cores until the end, and return the exit code. clients: of the first
        node; others: the further nodes, from rank 1."""
        first, place = self.link.other_host, self._parallel.nodes
        endpoints = [far_endpoints(first, ports) for ports in clients]
        self._cores = CoreProcesses(self._config, endpoints, self.loss.tell)
        lower = [NodeAddress(first, place.port), *others[: place.rank - 1]]
        threading.Thread(target=self._start, args=(lower,), name="cores", daemon=True).start()
        while frame := self.link.receive():
            kind, body = frame
            if kind is Frame.END:
                self.loss.let_end()
                threading.Thread(target=self._end, name="end", daemon=True).start()
            elif kind is Frame.LOST:
                self.hear_reason(msgspec.json.decode(body, type=LastWords).message)
                return 1
        return self.has_no_first()

    def _start(self, lower: Sequence[NodeAddress]) -> None:
        try:
            far = connect_other_nodes(self._parallel, lower, self._listener)
        except OSError as error:
            name = f"node {self._parallel.nodes.rank} ({socket.gethostname()})"
            self.loss.tell(LastWords(f"{name} does not reach the others: {error}", False))
            return
        self._listener.close()
        self._cores.start(far)

    def _end(self) -> None:
        """Stop the cores, which the clients have asked to end, and close the link on which the
        first node waits."""
        self._cores.stop(END_SECONDS)
        self.link.end()
