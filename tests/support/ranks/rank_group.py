"""RankGroup: tensor-parallel ranks that stay for many models, so that tests pay for one start.

The test's own process is rank 0. Each other rank is `python -m tests.support.ranks.rank_group`,
which loads one model after the other, as lines on its standard input say, and runs the engine's own
follower for each. The ranks of the product serve one model (tensor_parallel/rank_main.py).
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import msgspec
import torch

from atom.collectives.group import Group
from atom.collectives.torch_group import LOOPBACK, Place, TorchGroup, find_store, open_store
from atom.config import Config
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.tensor_parallel.executor import TensorParallelExecutor
from atom.model_engine.executor.tensor_parallel.rank_main import follow_steps
from atom.model_engine.executor.tensor_parallel.rank_processes import RankOrder, RankProcesses
from atom.model_engine.executor.tensor_parallel.step_channel import (
    StepMemory,
    StepReceiver,
    StepSender,
)
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.wire.first_loss import FirstLoss
from atom.utils.unnamed_memory import unnamed_memory
from tests.support.engine_core.core_driver import CoreDriver

_CPU = torch.device("cpu")


class RankGroup:
    """follower: the module that the other ranks run."""

    follower = __name__

    def __init__(self, size: int) -> None:
        self.size = size
        self._channel = StepSender(size - 1)
        self._pages = unnamed_memory("atom-kv-pages")
        self._transfers = unnamed_memory("atom-kv-transfers")
        store = open_store(size)
        self._followers = [self._follower(rank, store.port) for rank in range(1, size)]
        self._channel.let_go()
        self.group = TorchGroup(Place(0, size, _CPU, self._channel.memory.counter(0)), store)

    def driver(self, model: str, **options: Any) -> CoreDriver:
        """An engine over all ranks; `let_go` before the next one."""
        return _RankDriver(self, model, tensor_parallel_size=self.size, **options)

    def executor(self, config: Config) -> Executor:
        """Rank 0's, with the others loading the same model."""
        for rank, follower in enumerate(self._followers, start=1):
            parallel = dataclasses.replace(config.parallel, tensor_parallel_rank=rank)
            assert follower.stdin is not None
            own = dataclasses.replace(config, parallel=parallel)
            follower.stdin.write(self.line(own) + b"\n")
            follower.stdin.flush()
        loss = FirstLoss(lambda words: None)
        processes = RankProcesses(config, range(0), self._channel, loss)
        # Inherited by the followers before there was a model.
        processes.pages, processes.transfers = self._pages, self._transfers
        return TensorParallelExecutor(config, self.group, self._channel, processes)

    def line(self, config: Config) -> bytes:
        """What a follower reads of the model that it is to run."""
        return config.to_json()

    def let_go(self) -> None:
        """Have the followers leave their model."""
        self._channel.send(b"")

    def close(self) -> None:
        for follower in self._followers:
            assert follower.stdin is not None
            follower.stdin.close()
        for follower in self._followers:
            assert follower.wait() == 0
        self.group.close()

    def _follower(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        memory, connection = self._channel.descriptors(rank - 1)
        pages = self._pages, self._transfers
        order = msgspec.json.encode(RankOrder(memory, connection, LOOPBACK, port, *pages))
        return subprocess.Popen(
            [sys.executable, "-m", self.follower, order.decode(), str(rank), str(self.size)],
            stdin=subprocess.PIPE,
            pass_fds=(memory, connection, *pages),
        )


class RankGroups:
    """The ranks of an engine, which stay while tests ask for the same number: torch lets a process
    be in one group."""

    def __init__(self) -> None:
        self._started: RankGroup | None = None

    def __call__(self, size: int) -> RankGroup | None:
        """Return a group of this size; None for one rank, which needs none."""
        if size == 1:
            return None
        if self._started is None or self._started.size != size:
            self.close()
            self._started = RankGroup(size)
        return self._started

    def close(self) -> None:
        if self._started is not None:
            self._started.close()
            self._started = None


class _RankDriver(CoreDriver):
    def __init__(self, ranks: RankGroup, model: str, **options: Any) -> None:
        self._ranks = ranks
        super().__init__(model, **options)

    def build_executor(self) -> Executor:
        return self._ranks.executor(self.config)

    def close(self) -> None:
        self._ranks.let_go()


def _follow(order: RankOrder, rank: int, size: int) -> None:
    memory = StepMemory(order.memory)
    place = Place(rank, size, _CPU, memory.counter(rank))
    group: Group = TorchGroup(place, find_store(order.port, size, order.host))
    receiver = StepReceiver(memory, order.wakeup)
    for line in sys.stdin.buffer:
        follow_model(Config.from_json(line), group, receiver, order)
    group.close()


def follow_model(
    config: Config, group: Group, receiver: StepReceiver, order: RankOrder | None = None
) -> None:
    pages = (None, None) if order is None else (order.pages, order.transfers)
    runner = ModelRunner(config, group, None, *pages)
    runner.initialize(lambda phase, share: None)
    group.barrier()
    follow_steps(runner, receiver)


if __name__ == "__main__":
    _follow(msgspec.json.decode(sys.argv[1], type=RankOrder), int(sys.argv[2]), int(sys.argv[3]))
