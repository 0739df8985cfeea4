"""A further node's process: `python -m atom.model_engine.executor.node_main LEVEL`.

Started by follower_node.py only, with the configuration as a JSON line on standard input, which
then stays open as a lifeline. It finds the first node, runs the ranks of this one as that says, and
hands every step on to them. It ends when the first node does, or when one of its ranks has ended,
which it says there before it goes. Knows no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import socket
import sys
import threading
import time

import msgspec
import numpy as np

import atom
from atom.config import Config, NodePlace
from atom.model_engine.executor.first_loss import FirstLoss
from atom.model_engine.executor.node_link import Frame, NodeLink
from atom.model_engine.executor.other_nodes import NodeHello, NodeOrder
from atom.model_engine.executor.rank_processes import LastWords, Meeting, RankProcesses
from atom.model_engine.executor.step_channel import StepSender
from atom.utils.parent_watch import ParentLines, end_with_parent

logger = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 0.5
_TELL_AGAIN_SECONDS = 30.0
_END_SECONDS = 5.0


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
    link = _find_first(place)
    # The first node finishes what it has begun, and needs these ranks for it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    link.send(
        Frame.HELLO,
        msgspec.json.encode(NodeHello(place.rank, socket.gethostname(), atom.__version__)),
    )
    frame = link.receive()
    if frame is not None and frame[0] is Frame.ORDER:
        order = msgspec.json.decode(frame[1], type=NodeOrder)
        return _Node(config, order, link).run()
    if frame is not None and frame[0] is Frame.LOST:
        logger.error("%s", msgspec.json.decode(frame[1], type=LastWords).message)
    else:
        logger.error("the first node at %s:%d does not answer", place.address, place.port)
    return 1


def _find_first(place: NodePlace) -> NodeLink:
    """Tries until it is there: a pod's name leads nowhere before that pod has an address."""
    told_at = time.monotonic()
    pause = threading.Event()
    while True:
        try:
            return NodeLink(socket.create_connection((place.address, place.port), _END_SECONDS))
        except OSError as error:
            if time.monotonic() - told_at > _TELL_AGAIN_SECONDS:
                told_at = time.monotonic()
                logger.info("no first node at %s:%d yet: %s", place.address, place.port, error)
            pause.wait(_TRY_AGAIN_SECONDS)


class _Node:
    """This node's ranks, and the connection that says what they do."""

    def __init__(self, own: Config, order: NodeOrder, link: NodeLink) -> None:
        config = _as_the_first(own, Config.from_json(order.config.encode()))
        self._link = link
        self._meeting = Meeting(own.parallel.nodes.address, order.port)
        self._range = config.parallel.ranks_here
        self._channel = StepSender(len(self._range))
        self._loss = FirstLoss(self._say_lost)
        self._ranks = RankProcesses(config, self._range, self._channel, self._loss)

    def run(self) -> int:
        """Until the end; the exit code."""
        self._ranks.start(self._meeting)
        while frame := self._link.receive():
            kind, body = frame
            if kind is Frame.END:
                self._loss.let_end()
                self._channel.close()
                self._ranks.stop(_END_SECONDS)
                return 0
            if not self._loss.has_lost():  # else only until the first node has heard of it
                self._carry_out(kind, body)
        if not self._loss.has_lost():
            logger.error("the first node is gone: its connection has ended")
        return 1

    def _carry_out(self, kind: Frame, body: bytearray) -> None:
        # A rank that is gone is told of by who waits for it, a first node by the next frame.
        with contextlib.suppress(OSError):
            if kind is Frame.STEP:
                self._channel.send(body)
            elif kind is Frame.COUNT:
                memory = self._channel.memory
                counts = [int(memory.counter(rank)[0]) for rank in self._range]
                self._link.send(Frame.COUNTS, np.array(counts, np.int64).tobytes())

    def _say_lost(self, message: str, user_error: bool) -> None:
        logger.error("%s", message)
        with contextlib.suppress(OSError):
            self._link.send(Frame.LOST, msgspec.json.encode(LastWords(message, user_error)))
        self._link.say_last()


def _as_the_first(own: Config, first: Config) -> Config:
    """The first node's configuration, with this one's place and copy of the model."""
    parallel = dataclasses.replace(first.parallel, nodes=own.parallel.nodes)
    model = dataclasses.replace(first.model, path=own.model.path)
    return dataclasses.replace(first, model=model, parallel=parallel)


if __name__ == "__main__":
    sys.exit(main())
