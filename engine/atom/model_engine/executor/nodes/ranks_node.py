"""RanksNode: ranks of one copy of the model on a node that serves no requests.

It passes each step from the first node to the ranks, in shared memory.
"""

from __future__ import annotations

import contextlib

import numpy as np

from atom.config import Config
from atom.model_engine.executor.nodes.further_node import END_SECONDS, FurtherNode
from atom.model_engine.executor.tensor_parallel.rank_processes import Meeting, RankProcesses
from atom.model_engine.executor.tensor_parallel.step_channel import StepSender
from atom.model_engine.wire.node_link import Frame, NodeLink


class RanksNode(FurtherNode):
    def __init__(self, config: Config, meeting: Meeting, link: NodeLink) -> None:
        super().__init__(link)
        self._meeting = meeting
        self._range = config.parallel.ranks_here
        self._channel = StepSender(len(self._range))
        self._ranks = RankProcesses(config, self._range, self._channel, self.loss)

    def run(self) -> int:
        """Run this node's ranks until the end, and return the exit code."""
        self._ranks.start(self._meeting)
        while frame := self.link.receive():
            kind, body = frame
            if kind is Frame.END:
                self.loss.let_end()
                self._channel.close()
                self._ranks.stop(END_SECONDS)
                return 0
            if not self.loss.has_lost():  # else only until the first node has heard of it
                self._carry_out(kind, body)
        return self.has_no_first()

    def _carry_out(self, kind: Frame, body: bytearray) -> None:
        # A lost rank is reported by its watcher, a lost first node by the next frame.
        with contextlib.suppress(OSError):
            if kind is Frame.STEP:
                self._channel.send(body)
            elif kind is Frame.COUNT:
                memory = self._channel.memory
                counts = [int(memory.counter(rank)[0]) for rank in self._range]
                self.link.send(Frame.COUNTS, np.array(counts, np.int64).tobytes())
