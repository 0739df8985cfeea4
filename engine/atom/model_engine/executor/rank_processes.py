"""RankProcesses: the processes of the ranks that follow, as children of the core's.

Each is `python -m atom.model_engine.executor.rank_main`, and cannot outlive the core (child_process
and parent_watch). When one ends before it was told to, `on_failure` is called with its name and the
reason, from a thread of ours: the core may be waiting for it on a device just then.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from atom.config import Config
from atom.model_engine.executor.step_channel import StepSender
from atom.utils.child_process import ChildProcess

logger = logging.getLogger(__name__)

# What a group's end is told with: why, and whether the user can mend it.
OnFailure = Callable[[str, bool], None]

_MODULE = "atom.model_engine.executor.rank_main"


class RankOrder(msgspec.Struct, frozen=True):
    """What a follower is told beside the configuration. memory, bell: file descriptors of the step
    channel; port: where the ranks meet."""

    memory: int
    bell: int
    port: int


class LastWords(msgspec.Struct, frozen=True):
    """What a follower says when it cannot go on."""

    message: str
    user_error: bool


class RankProcesses:
    def __init__(self, config: Config, channel: StepSender, on_failure: OnFailure) -> None:
        self._config = config
        self._channel = channel
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._first = threading.Lock()  # taken for good by whose end is the reason
        self._said: dict[str, LastWords] = {}
        self._children: list[ChildProcess] = []

    def start(self, port: int) -> None:
        """Spawn all; returns when each has its configuration."""
        for rank in range(1, self._config.parallel.tensor_parallel_size):
            memory, bell = self._channel.descriptors(rank - 1)
            child = self._child(rank, (memory, bell))
            self._children.append(child)
            child.start()
            parallel = dataclasses.replace(self._config.parallel, tensor_parallel_rank=rank)
            child.tell(dataclasses.replace(self._config, parallel=parallel).to_json())
            child.tell(msgspec.json.encode(RankOrder(memory, bell, port)))
        self._channel.let_go()

    def has_lost(self, within_seconds: float) -> bool:
        """Whether a rank is gone, or is within that time."""
        return self._lost.wait(within_seconds)

    def let_end(self) -> None:
        """Their ends are no failure from here on."""
        self._closing.set()

    def stop(self, timeout_seconds: float) -> None:
        """Wait for ranks that were told to end, then make them."""
        deadline = time.monotonic() + timeout_seconds
        for child in self._children:
            if not child.wait(deadline - time.monotonic()):
                logger.warning("%s did not end in %g s; killing it", child.name, timeout_seconds)
                child.kill()

    def _child(self, rank: int, descriptors: tuple[int, int]) -> ChildProcess:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        name = f"rank {rank} of the tensor-parallel group"
        return ChildProcess(
            name,
            [sys.executable, "-m", _MODULE, level],
            self._ended,
            pass_fds=descriptors,
            on_line=lambda line: self._hear(name, line),
        )

    def _hear(self, name: str, line: bytes) -> None:
        self._said[name] = msgspec.json.decode(line, type=LastWords)

    def _ended(self, child: ChildProcess) -> None:
        # The end of one makes the others fail as well.
        if self._closing.is_set() or not self._first.acquire(blocking=False):
            return
        self._lost.set()
        said = self._said.get(child.name)
        if said is None:
            self._on_failure(child.last_words, False)
        else:
            self._on_failure(f"{child.name}: {said.message}", said.user_error)
