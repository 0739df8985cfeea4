"""OtherNodes: the first node's side of a group that spans several machines.

Waits for a process of each of them (node_main), tells it what to run, hands every step on, and
tells of its end by name. Belongs to the engine core's process; a thread listens to each node.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from dataclasses import dataclass, field

import msgspec
import numpy as np

import atom
from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.executor.first_loss import FirstLoss
from atom.model_engine.executor.node_link import Frame, NodeLink
from atom.model_engine.executor.rank_processes import LastWords
from atom.utils.listening import listen_everywhere

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 1.0
_HELLO_SECONDS = 5.0  # of a process that connects; a node says hello at once


class NodeHello(msgspec.Struct, frozen=True):
    """Who comes. host: its machine's name; version: of its engine."""

    rank: int
    host: str
    version: str


class NodeOrder(msgspec.Struct, frozen=True):
    """What a node is to run. config: the first node's; port: of the store where ranks meet."""

    config: str
    port: int


@dataclass(slots=True)
class _Node:
    hello: NodeHello
    link: NodeLink
    counts: queue.SimpleQueue[list[int]] = field(default_factory=queue.SimpleQueue)

    @property
    def name(self) -> str:
        return f"node {self.hello.rank} ({self.hello.host}) of the tensor-parallel group"


class OtherNodes:
    """Listens at once; `meet` waits for all."""

    def __init__(self, config: Config, loss: FirstLoss) -> None:
        self._config = config
        self._loss = loss
        self._nodes: dict[int, _Node] = {}
        place = config.parallel.nodes
        try:
            self._listener = listen_everywhere(place.port)
        except OSError as error:
            raise ConfigError(
                f"master_port {place.port} cannot be listened on: {error}; choose another, the "
                "same on every node"
            ) from error

    def meet(self, store_port: int) -> None:
        """Until every node has its order."""
        place = self._config.parallel.nodes
        order = NodeOrder(self._config.to_json().decode(), store_port)
        logger.info("waiting for %d other nodes at port %d", place.count - 1, place.port)
        while len(self._nodes) < place.count - 1:
            connection, address = self._listener.accept()
            link = NodeLink(connection)
            node = self._welcome(link)
            if node is None:
                logger.warning("%s is no node that is waited for; it is let go", address[0])
                link.close()
                continue
            link.send(Frame.ORDER, msgspec.json.encode(order))
            self._nodes[node.hello.rank] = node
            logger.info("%s is here", node.name)
            threading.Thread(target=self._listen, args=(node,), name=node.name, daemon=True).start()
        self._listener.close()

    def send(self, message: bytes | bytearray) -> None:
        """Hand a step on. A node that is gone is told of by who listens to it."""
        for node in self._nodes.values():
            with contextlib.suppress(OSError):
                node.link.send(Frame.STEP, message)

    def counts(self) -> list[int | None]:
        """How many collectives each rank of the others has begun, in the order of ranks; None for
        those of a node that does not answer."""
        found: list[int | None] = []
        for _, node in sorted(self._nodes.items()):
            try:
                node.link.send(Frame.COUNT)
                found += node.counts.get(timeout=_ANSWER_SECONDS)
            except (OSError, queue.Empty):
                found += [None] * self._config.parallel.ranks_per_node
        return found

    def close(self) -> None:
        """Tell the nodes that nothing more comes."""
        for node in self._nodes.values():
            with contextlib.suppress(OSError):
                node.link.send(Frame.END)

    def _welcome(self, link: NodeLink) -> _Node | None:
        link.wait_at_most(_HELLO_SECONDS)
        frame = link.receive()
        if frame is None or frame[0] is not Frame.HELLO:
            return None
        link.wait_at_most(None)
        try:
            hello = msgspec.json.decode(frame[1], type=NodeHello)
        except msgspec.DecodeError:
            return None
        problem = self._problem(hello)
        if problem is not None:
            link.send(Frame.LOST, msgspec.json.encode(LastWords(problem, True)))
            return None
        return _Node(hello, link)

    def _problem(self, hello: NodeHello) -> str | None:
        """Why this node cannot join."""
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
                words = msgspec.json.decode(body, type=LastWords)
                self._loss.tell(words.message, words.user_error)
        self._loss.tell(f"{node.name} is gone: its connection has ended")
