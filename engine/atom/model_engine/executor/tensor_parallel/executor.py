"""TensorParallelExecutor: a model that several processes share, each with its part and its device.

Rank 0's runner is in the engine core's own process: its results cross no process boundary. A step
is sent to the other ranks before it runs here, so they start at most a wake-up later. The others
run `rank_main` in separate processes, on this node or on others (other_nodes.py). The core has the
only scheduler and the only bookkeeping.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from atom.collectives.group import Group
from atom.collectives.torch_group import LOOPBACK, Place, TorchGroup, open_store
from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.control import At, RankControl
from atom.model_engine.executor.base import OneScheduler
from atom.model_engine.executor.moved_pages import MovedPages
from atom.model_engine.executor.single import SingleDeviceExecutor
from atom.model_engine.executor.tensor_parallel.rank_pages import RankPages
from atom.model_engine.executor.tensor_parallel.rank_processes import Meeting, RankProcesses
from atom.model_engine.executor.tensor_parallel.step_channel import StepSender
from atom.model_engine.executor.tensor_parallel.step_codec import (
    encode_batch,
    encode_control,
    encode_sample,
)
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.page_access import PageAccess
from atom.model_engine.page_moves import HostPageMover
from atom.model_engine.runner.lora_adapters import HostAdapter
from atom.model_engine.runner.rank_device import rank_device
from atom.model_engine.runner.step_graphs import Progress
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.first_loss import FirstLoss, OnFailure
from atom.model_engine.wire.other_nodes import OtherNodes, RanksWork
from atom.utils.listening import is_loopback

logger = logging.getLogger(__name__)

_NEWS_SECONDS = 1.0  # for the end of a process to be known after the error that it causes here
_END_SECONDS = 5.0


class TensorParallelExecutor(OneScheduler):
    """The leader's end of a group that has met."""

    def __init__(
        self,
        config: Config,
        group: Group,
        channel: StepSender,
        ranks: RankProcesses,
        nodes: OtherNodes | None = None,
    ) -> None:
        """nodes: the group's further nodes; None if it spans this one alone."""
        self._group = group
        self._channel = channel
        self._ranks = ranks
        self._nodes = nodes
        self._ranks_here = config.parallel.ranks_here
        runner = ModelRunner(config, group, pages=ranks.pages, transfers=ranks.transfers)
        self._own = SingleDeviceExecutor(config, runner)
        self._outstanding = 0  # steps that were submitted and not collected

    @property
    def steps_behind(self) -> int:
        return self._own.steps_behind

    @property
    def wake_fds(self) -> Sequence[int]:
        return self._own.wake_fds

    @property
    def pages(self) -> HostPageMover | None:
        tier = self._own.runner.tier
        return None if tier is None else MovedPages(tier, self.control)

    def initialize(self, progress: Progress) -> EngineReport:
        with _together(self._ranks.loss):
            report = self._own.initialize(progress)
            self._group.barrier()
            return report

    def call_after_layers(self, callback: Callable[[], None]) -> None:
        self._own.call_after_layers(callback)

    def submit(self, batch: ScheduledBatch) -> int:
        with _together(self._ranks.loss):
            self._send(encode_batch(batch, self._outstanding))
            self._outstanding += 1
            return self._own.submit(batch)

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        with _together(self._ranks.loss):
            self._send(encode_sample(mask))
            self._own.sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        with _together(self._ranks.loss):
            self._outstanding -= 1
            return self._own.collect(ticket)

    def read_lora(self, path: str) -> HostAdapter:
        return self._own.read_lora(path)

    def control(self, call: RankControl[Any], prepared: Any = None) -> None:
        if call.at is At.CORE:
            self._own.control(call, prepared)
            return
        with _together(self._ranks.loss):
            self._send(encode_control(call))
            self._own.control(call, prepared)

    def transferred_pages(self) -> PageAccess:
        return RankPages(self._own.runner.transferred_pages(), self.control)

    def close(self) -> None:
        self._ranks.loss.let_end()
        if self._nodes is not None:
            self._nodes.close()
        self._channel.close()
        self._own.runner.close()
        self._ranks.stop(_END_SECONDS)

    def who_is_behind(self) -> str:
        counts: list[int | None] = [
            int(self._channel.memory.counter(rank)[0]) for rank in self._ranks_here
        ]
        if self._nodes is not None:
            counts += self._nodes.counts()
        silent = [str(rank) for rank, count in enumerate(counts) if count is None]
        if silent:
            return f"the node of rank {', '.join(silent)} of the tensor-parallel group is silent"
        least = min(count for count in counts if count is not None)
        behind = [str(rank) for rank, count in enumerate(counts) if count == least]
        if len(behind) == len(counts):  # a rank may have stopped within its running collective
            behind = [str(rank) for rank in self._ranks.stopped()]
        if not behind:
            return "the ranks of the tensor-parallel group wait for each other"
        return f"rank {', '.join(behind)} of the tensor-parallel group is behind the others"

    def _send(self, message: bytearray) -> None:
        if self._nodes is not None:
            self._nodes.send(message)
        self._channel.send(message)


def start_group(config: Config, on_failure: OnFailure) -> TensorParallelExecutor:
    """Start the other ranks and meet them. on_failure: called, from any thread, with the reason why
    the group cannot continue; it must end this process."""
    parallel = config.parallel
    loss = FirstLoss(lambda words: on_failure(words.message, words.user_error))
    size, place = parallel.tensor_parallel_size, parallel.nodes
    if place.rank:
        raise ConfigError(f"node_rank {place.rank}: a further node is run by `atom serve` alone")
    nodes = OtherNodes(config, loss) if place.count > 1 else None
    device = rank_device(config).torch_device
    channel = StepSender(parallel.ranks_per_node - 1)
    ranks = RankProcesses(config, parallel.ranks_here[1:], channel, loss)
    store = open_store(size, for_other_nodes=nodes is not None)
    ranks.start(Meeting(LOOPBACK, store.port))
    if nodes is not None:
        nodes.meet(RanksWork(store.port))
        nodes.stop_listening()
    alone = nodes is None or is_loopback(place.address)
    where = Place(0, size, device, channel.memory.counter(0), place.count, alone)
    with _together(loss):
        group = TorchGroup(where, store)
    return TensorParallelExecutor(config, group, channel, ranks, nodes)


@contextmanager
def _together(loss: FirstLoss) -> Iterator[None]:
    """Report an error of the body as another rank's failure if that rank has ended."""
    try:
        yield
    except Exception:
        if loss.has_lost(_NEWS_SECONDS):
            logger.debug("an error that the end of a rank has made", exc_info=True)
            threading.Event().wait()  # the thread that saw the end ends this process
        raise
