"""A further node's process: `python -m atom.model_engine.executor.nodes.node_main LEVEL`.

Started by follower_node.py only, with the configuration as a JSON line on standard input, which
then stays open as a lifeline. It finds the first node and runs the ranks that the node orders: of a
copy of the model (ranks_node.py), or engine cores that share experts (cores_node.py). It ends when
the first node does, or when one of its ranks has ended, which it reports first. Knows no torch.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import socket
import sys
import threading
import time

import msgspec

import atom
from atom.config import Config, NodePlace
from atom.model_engine.executor.nodes.cores_node import CoresNode
from atom.model_engine.executor.nodes.ranks_node import RanksNode
from atom.model_engine.executor.tensor_parallel.rank_processes import Meeting
from atom.model_engine.wire.first_loss import LastWords
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.model_engine.wire.other_nodes import CoresWork, NodeHello, NodeOrder
from atom.utils.listening import listen_everywhere
from atom.utils.parent_watch import ParentLines, end_with_parent
from atom.utils.process_end import end_process

logger = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 0.5
_TELL_AGAIN_SECONDS = 30.0
_CONNECT_SECONDS = 5.0


def main() -> int:
    end_with_parent()
    parent = ParentLines()
    config = Config.from_json(parent.next())
    parent.follow()
    place = config.parallel.nodes
    logging.basicConfig(
        level=sys.argv[1],
        format=f"%(asctime)s %(levelname)s node {place.rank} %(name)s: %(message)s",
    )
    link, listener = _find_first(place), listen_everywhere(0)
    # The first node finishes its running work, and needs these ranks for it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    port = listener.getsockname()[1]
    hello = NodeHello(place.rank, socket.gethostname(), atom.__version__, port)
    link.send(Frame.HELLO, msgspec.json.encode(hello))
    kind, body = link.receive() or (None, b"")
    if kind is Frame.ORDER:
        return _carry_out(config, msgspec.json.decode(body, type=NodeOrder), link, listener)
    if kind is Frame.LOST:
        logger.error("%s", msgspec.json.decode(body, type=LastWords).message)
    elif kind is Frame.END:  # before all nodes were there
        return 0
    else:
        logger.error("the first node at %s:%d does not answer", place.address, place.port)
    return 1


def _carry_out(own: Config, order: NodeOrder, link: NodeLink, listener: socket.socket) -> int:
    config = _as_the_first(own, Config.from_json(order.config.encode()))
    if isinstance(order.work, CoresWork):
        return CoresNode(config, link, listener).run(order.work.clients, order.others)
    listener.close()
    meeting = Meeting(own.parallel.nodes.address, order.work.port)
    return RanksNode(config, meeting, link).run()


def _find_first(place: NodePlace) -> NodeLink:
    """Connect to the first node, retrying until its pod has an address and listens."""
    told_at = time.monotonic()
    pause = threading.Event()
    while True:
        try:
            return NodeLink(socket.create_connection((place.address, place.port), _CONNECT_SECONDS))
        except OSError as error:
            if time.monotonic() - told_at > _TELL_AGAIN_SECONDS:
                told_at = time.monotonic()
                logger.info("no first node at %s:%d yet: %s", place.address, place.port, error)
            pause.wait(_TRY_AGAIN_SECONDS)


def _as_the_first(own: Config, first: Config) -> Config:
    """Return the first node's configuration, with this one's place and copy of the model."""
    parallel = dataclasses.replace(first.parallel, nodes=own.parallel.nodes)
    model = dataclasses.replace(first.model, path=own.model.path)
    return dataclasses.replace(first, model=model, parallel=parallel)


if __name__ == "__main__":
    end_process(main())
