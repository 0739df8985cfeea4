"""OtherNodes: the first node's side of a group that spans several machines.

Waits for a process of each further node (node_main), sends its order, forwards every step to nodes
of followers, and reports a node's end by name. Belongs to the process that starts the ranks of the
first node: the engine core of a copy that they share, or the server of cores that share experts. A
thread listens to each node.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np

import atom
from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.wire.first_loss import FirstLoss, LastWords
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.utils.listening import listen_everywhere

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 1.0
_HELLO_SECONDS = 5.0  # of a process that connects; a node sends hello at once


class NodeHello(msgspec.Struct, frozen=True):
    """Introduce a node. host: its machine's name; version: of its engine; port: where it waits for
    nodes of a higher rank, if there are any (another version may omit it)."""

    rank: int
    host: str
    version: str
    port: int = 0


class NodeAddress(msgspec.Struct, frozen=True):
    """Locate a node's listener for other nodes. host: as the first node reaches it."""

    host: str
    port: int


class RanksWork(msgspec.Struct, frozen=True, tag="ranks"):
    """Let a node run ranks of one copy of the model. port: of the store where they meet."""

    port: int


class ClientPorts(msgspec.Struct, frozen=True):
    """Hold a client's ports on the first node for cores of other nodes; see ClientEndpoints."""

    requests: int
    outputs: int


class CoresWork(msgspec.Struct, frozen=True, tag="cores"):
    """A node is to run engine cores that share experts. clients: of all, by their numbers."""

    clients: list[ClientPorts]


class NodeOrder(msgspec.Struct, frozen=True):
    """Give a node its work. config: the first node's; others: the further nodes, from rank 1."""

    config: str
    work: RanksWork | CoresWork
    others: list[NodeAddress]


@dataclass(slots=True)
class _Node:
    hello: NodeHello
    link: NodeLink
    name: str  # for people
    address: NodeAddress
    counts: queue.SimpleQueue[list[int]] = field(default_factory=queue.SimpleQueue)
    gone: threading.Event = field(default_factory=threading.Event)


class OtherNodes:
    """Listens at once; `meet` waits for all."""

    def __init__(self, config: Config, loss: FirstLoss) -> None:
        """Listen for nodes. Raises `ConfigError` if the port cannot be opened."""
        self._config = config
        self._loss = loss
        self._nodes: dict[int, _Node] = {}
        place = config.parallel.nodes
        try:
            self.listener = listen_everywhere(place.port)
        except OSError as error:
            raise ConfigError(
                f"master_port {place.port} cannot be listened on: {error}; choose another, the "
                "same on every node"
            ) from error

    def meet(self, work: RanksWork | CoresWork) -> None:
        """Wait until all nodes are here and have their order. Raises `OSError` once
        `stop_listening` was called."""
        place = self._config.parallel.nodes
        logger.info("waiting for %d other nodes at port %d", place.count - 1, place.port)
        while len(self._nodes) < place.count - 1:
            connection, address = self.listener.accept()
            link = NodeLink(connection)
            node = self._welcome(link)
            if node is None:
                logger.warning("%s is no node that is waited for; it is let go", address[0])
                link.close()
                continue
            self._nodes[node.hello.rank] = node
            logger.info("%s is here", node.name)
            threading.Thread(target=self._listen, args=(node,), name=node.name, daemon=True).start()
        others = [node.address for _, node in sorted(self._nodes.items())]
        order = NodeOrder(self._config.to_json().decode(), work, others)
        self._tell_all(Frame.ORDER, msgspec.json.encode(order))

    def stop_listening(self) -> None:
        """Accept no further node; a thread that waits for one gets an `OSError`. From any
        thread."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def send(self, message: bytes | bytearray) -> None:
        """Hand a step on."""
        self._tell_all(Frame.STEP, message)

    def counts(self) -> list[int | None]:
        """Return how many collectives each rank of the other nodes has begun, in the order of
        ranks; None for a node that does not answer."""
        found: list[int | None] = []
        for _, node in sorted(self._nodes.items()):
            try:
                node.link.send(Frame.COUNT)
                found += node.counts.get(timeout=_ANSWER_SECONDS)
            except (OSError, queue.Empty):
                found += [None] * self._config.parallel.ranks_per_node
        return found

    def close(self) -> None:
        """Send the nodes the end: no further message follows."""
        self._tell_all(Frame.END)

    def give_reason(self, message: str) -> None:
        """Send the nodes the reason why the group cannot continue."""
        self._tell_all(Frame.LOST, msgspec.json.encode(LastWords(message, False)))

    def wait_gone(self, timeout_seconds: float) -> None:
        """Wait until the nodes that were told to end have ended, at most `timeout_seconds`; then
        close."""
        deadline = time.monotonic() + timeout_seconds
        for node in [*self._nodes.values()]:
            node.gone.wait(max(0.0, deadline - time.monotonic()))
            node.link.end()

    def _tell_all(self, kind: Frame, body: bytes | bytearray = b"") -> None:
        """Send a frame to every node. The node's listener reports a node that is gone."""
        for node in [*self._nodes.values()]:
            with contextlib.suppress(OSError):
                node.link.send(kind, body)

    def _welcome(self, link: NodeLink) -> _Node | None:
        link.wait_at_most(_HELLO_SECONDS)
        frame = link.receive()
        if frame is None or frame[0] is not Frame.HELLO:
            return None
        link.wait_at_most(None)
        try:
            hello = msgspec.json.decode(frame[1], type=NodeHello)
            host = link.other_host
        except (msgspec.DecodeError, OSError):
            return None
        problem = self._problem(hello)
        if problem is not None:
            link.send(Frame.LOST, msgspec.json.encode(LastWords(problem, True)))
            return None
        kind = "data" if self._config.parallel.shares_experts else "tensor"
        name = f"node {hello.rank} ({hello.host}) of the {kind}-parallel group"
        return _Node(hello, link, name, NodeAddress(host, hello.port))

    def _problem(self, hello: NodeHello) -> str | None:
        """Return why this node cannot join."""
        count = self._config.parallel.nodes.count
        if not 1 <= hello.rank < count:
            return f"node_rank {hello.rank}: the first node waits for 1 to {count - 1}"
        if hello.rank in self._nodes:
            return f"node_rank {hello.rank}: {self._nodes[hello.rank].name} is here already"
        if hello.version != atom.__version__:
            return (
                f"the first node runs version {atom.__version__} and this one {hello.version}; "
                "use one image for all"
            )
        return None

    def _listen(self, node: _Node) -> None:
        while frame := node.link.receive():
            kind, body = frame
            if kind is Frame.COUNTS:
                node.counts.put(np.frombuffer(body, np.int64).tolist())
            elif kind is Frame.LOST:
                self._loss.tell(msgspec.json.decode(body, type=LastWords))
        self._loss.tell(LastWords(f"{node.name} is gone: its connection has ended", False))
        node.gone.set()
