"""RankProcesses: the processes of this node's following ranks, as children of the caller's.

Each is `python -m` of the module rank_main beside this one, and cannot outlive its parent
(child_process and parent_watch). A thread reports an unexpected end by the rank's name, with its
reason: the core may be waiting for the rank on a device just then.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import sys
import time
from dataclasses import dataclass

import msgspec

from atom.config import Config
from atom.model_engine.executor.tensor_parallel.step_channel import StepSender
from atom.model_engine.wire.first_loss import FirstLoss, LastWords
from atom.utils.child_process import ChildProcess, Command
from atom.utils.unnamed_memory import unnamed_memory

logger = logging.getLogger(__name__)

_MODULE = "atom.model_engine.executor.tensor_parallel.rank_main"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Locate the meeting point of all ranks: the first node's store."""

    host: str
    port: int


class RankOrder(msgspec.Struct, frozen=True):
    """The settings with which a follower joins, besides its configuration. memory, wakeup: file
    descriptors of the step channel; host, port: where the ranks meet. pages: descriptor of the
    host's tier of the KV cache, None without one; transfers: of the memory for pages that are
    exchanged with other engines, None without an exchange."""

    memory: int
    wakeup: int
    host: str
    port: int
    pages: int | None = None
    transfers: int | None = None


class RankProcesses:
    """The processes of this node's following ranks (`ranks`); the n-th is follower n of
    `channel`. pages, transfers: descriptors of the memory for the KV cache's pages, None without
    such a tier or without an exchange with other engines."""

    def __init__(self, config: Config, ranks: range, channel: StepSender, loss: FirstLoss) -> None:
        self.loss = loss
        self.pages = unnamed_memory("atom-kv-pages") if config.tier_bytes else None
        exchanges = config.cache.kv_transfer is not None
        self.transfers = unnamed_memory("atom-kv-transfers") if exchanges else None
        self._config = config
        self._ranks = ranks
        self._channel = channel
        self._said: dict[str, LastWords] = {}
        self._children: list[ChildProcess] = []

    def start(self, meeting: Meeting) -> None:
        """Spawn all ranks; returns when each has its configuration."""
        for follower, rank in enumerate(self._ranks):
            memory, wakeup = self._channel.descriptors(follower)
            child = self._child(rank, (memory, wakeup))
            self._children.append(child)
            child.start()
            parallel = dataclasses.replace(self._config.parallel, tensor_parallel_rank=rank)
            child.tell(dataclasses.replace(self._config, parallel=parallel).to_json())
            pages = self.pages, self.transfers
            order = RankOrder(memory, wakeup, meeting.host, meeting.port, *pages)
            child.tell(msgspec.json.encode(order))
        self._channel.let_go()

    def stopped(self) -> list[int]:
        """Return the ranks whose process the operating system has stopped."""
        return [
            rank
            for rank, child in zip(self._ranks, self._children, strict=False)
            if child.is_stopped()
        ]

    def stop(self, timeout_seconds: float) -> None:
        """Wait for ranks that were asked to end, then kill the rest."""
        deadline = time.monotonic() + timeout_seconds
        for child in self._children:
            if not child.wait(deadline - time.monotonic()):
                logger.warning("%s did not end in %g s; killing it", child.name, timeout_seconds)
                child.kill()

    def _child(self, rank: int, descriptors: tuple[int, int]) -> ChildProcess:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        name = f"rank {rank} of the tensor-parallel group"
        nodes = self._config.parallel.nodes
        if nodes.count > 1:
            name = f"{name} on node {nodes.rank} ({socket.gethostname()})"
        own = [each for each in (self.pages, self.transfers) if each is not None]
        passed = (*descriptors, *own)
        return ChildProcess(
            name,
            Command([sys.executable, "-m", _MODULE, level], pass_fds=passed),
            self._ended,
            on_line=lambda line: self._hear(name, line),
        )

    def _hear(self, name: str, line: bytes) -> None:
        self._said[name] = msgspec.json.decode(line, type=LastWords)

    def _ended(self, child: ChildProcess) -> None:
        said = self._said.get(child.name)
        if said is None:
            self.loss.tell(LastWords(child.last_words, False))
        else:
            self.loss.tell(LastWords(f"{child.name}: {said.message}", said.user_error))
