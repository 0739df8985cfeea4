"""What stands for the device's half of cores in a LockstepWorld: runner and collectives.

Blocks and positions are PagedModel's to judge; a token is the sum of what every rank's "experts"
say of it, in as many rounds as there are layers. With depth 1 steps run behind the host, on a
player of their own, as on a GPU.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.wire.engine_protocol import EngineReport
from tests.support.engine_core.paged_model import PagedModel

if TYPE_CHECKING:
    from tests.support.ranks.lockstep_world import LockstepWorld

_LAYERS = 2
_VOCABULARY = 1000


def share_of(rank: int, request: int, position: int) -> int:
    """What the experts of a rank say of the token at this position of a request."""
    return (request * 7919 + position * 104729 + rank * 31337) % 911


def token_of(ranks: int, request: int, position: int) -> int:
    """The token that a request gets at a position, from all ranks' experts."""
    return sum(share_of(rank, request, position) for rank in range(ranks)) % _VOCABULARY


def device_of(rank: int) -> int:
    """The player that runs a rank's steps where they are behind its host."""
    return -1 - rank


class LostError(RuntimeError):
    """What a library of collectives says when another process is gone."""


class Board:
    """What stands for TorchGroup: all put a value, and take everyone's."""

    def __init__(self, world: LockstepWorld, rank: int) -> None:
        self.world, self._rank, self._round = world, rank, 0

    def everyone(self, value: Any, player: int | None = None) -> list[Any]:
        """player: that waits; the rank's host if it is none."""
        world, number = self.world, self._round
        self._round += 1
        world.board[number][self._rank] = value
        waits = self._rank if player is None else player
        world.turns.pause(waits, f"round {number}", lambda: self._is_over(number))
        said = world.board[number]
        if len(said) < world.size:
            raise LostError("connection closed by peer")
        return [said[rank] for rank in range(world.size)]

    def _is_over(self, number: int) -> bool:
        """An end is an error here, or nothing at all, as libraries of devices have it."""
        missing = set(range(self.world.size)) - self.world.board[number].keys()
        return not missing or (self.world.says_ends and bool(missing & self.world.ended.keys()))

    def barrier(self) -> None:
        self.everyone(None)

    def close(self) -> None:
        pass


@dataclasses.dataclass
class _Step:
    """wanted: places whose tokens it draws; tokens: these, once it has run."""

    capacity: int | None
    wanted: list[tuple[int, int]]
    output: ScheduledBatchOutput | None = None
    tokens: list[int] | None = None
    error: LostError | None = None

    @property
    def has_run(self) -> bool:
        return self.tokens is not None or self.error is not None


class Runner:
    """What stands for ModelRunner and its StepRunner; `run_device` is the device's player, of
    depth 1."""

    def __init__(self, config: Config, links: Board, depth: int) -> None:
        self._config, self._links, self._turns = config, links, links.world.turns
        self._queue: deque[_Step] = deque()
        self._closed = False
        self.steps_behind = depth
        self._rank = config.parallel.data_parallel_rank
        self._ranks = config.parallel.data_parallel_size
        self._capacity: int | None = None
        self.tier = None
        cache = config.cache
        assert cache.num_kv_blocks is not None
        self._model = PagedModel(
            cache.block_size,
            cache.num_kv_blocks,
            draw=lambda request, position: token_of(self._ranks, request, position),
            max_model_len=config.model.max_model_len,
        )

    def initialize(self, progress: Any) -> EngineReport:
        fields = [field for field in msgspec.structs.fields(EngineReport) if field.required]
        values: dict[str, Any] = {
            **{field.name: "" for field in fields if field.type is str},
            **{field.name: 1 for field in fields if field.type is int},
            "block_size": self._config.cache.block_size,
            "num_blocks": self._config.cache.num_kv_blocks,
        }
        return EngineReport(**values, backends={}, concurrency=[])

    def call_after_layers(self, callback: Any) -> None:
        pass

    def balancer(self) -> None:
        return None

    @property
    def steps(self) -> Runner:
        return self

    def set_dp_padding(self, capacity: int | None) -> None:
        self._capacity = capacity

    def run_dummy_batch(self) -> None:
        self._start(_Step(self._capacity, []))

    def submit(self, batch: ScheduledBatch) -> _Step:
        assert self._capacity is None or batch.total_tokens_num <= self._capacity
        lengths = zip(batch.req_ids.tolist(), batch.context_lens.tolist(), strict=True)
        wanted = [place for place, samples in zip(lengths, batch.samples, strict=True) if samples]
        step = _Step(self._capacity, wanted, self._model.submit(batch))
        self._start(step)
        return step

    def sample(self, step: _Step, mask: TokenMask | None) -> None:
        raise AssertionError("no row asks for that")

    def collect(self, step: _Step) -> ScheduledBatchOutput:
        if self.steps_behind:
            self._turns.pause(self._rank, "its device", lambda: step.has_run)
        if step.error is not None:
            raise step.error
        assert step.output is not None
        return dataclasses.replace(step.output, token_ids=np.array(step.tokens, dtype=np.int32))

    def close(self) -> None:
        """Wait for what was queued, as a device is synchronised."""
        if self.steps_behind:
            self._turns.pause(self._rank, "its device", lambda: not self._queue)
        self._closed = True

    def run_device(self) -> None:
        while True:
            self._turns.pause(
                device_of(self._rank), "a step", lambda: bool(self._queue) or self._closed
            )
            if not self._queue:
                return
            try:
                self._run(self._queue[0], device_of(self._rank))
            except LostError as error:
                self._queue[0].error = error
            self._queue.popleft()

    def _start(self, step: _Step) -> None:
        if self.steps_behind:
            self._queue.append(step)
        else:
            self._run(step)

    def _run(self, step: _Step, player: int | None = None) -> None:
        """Draw the tokens of a step, from every rank's experts, layer by layer."""
        tokens: list[int] = []
        for _ in range(_LAYERS):
            asked = self._links.everyone((step.capacity, step.wanted), player)
            assert len({capacity for capacity, _ in asked}) == 1, "ranks run other steps"
            shares = [[share_of(self._rank, *place) for place in places] for _, places in asked]
            told = self._links.everyone(shares, player)
            own = [each[self._rank] for each in told]
            tokens = [sum(column) % _VOCABULARY for column in zip(*own, strict=True)]
        step.tokens = tokens
