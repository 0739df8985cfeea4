"""LockstepWorld: engine cores that share experts, as players of one process, without a model.

Core, scheduler, blocks, pipeline, lockstep and mesh are the product's, with real sockets between
the cores. In the model's place stands PagedModel, which notices wrong blocks and positions; a token
is the sum of what every rank's "experts" say of it, so a round that ranks do not make together is
a wrong token. Collectives are a board; a rank that is killed takes its sockets with it.
"""

from __future__ import annotations

import dataclasses
import random
import select
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.peers import PeerExecutor, PeerWatch
from atom.model_engine.wire.engine_protocol import EngineReport, FinishedRow, StreamBody
from atom.model_engine.wire.peer_mesh import MeshOrder, PeerMesh, Word, mesh_sockets
from tests.support.paged_model import PagedModel
from tests.support.turns import Turns

_LAYERS = 2
_VOCABULARY = 1000


def share_of(rank: int, request: int, position: int) -> int:
    """What the experts of a rank say of the token at this position of a request."""
    return (request * 7919 + position * 104729 + rank * 31337) % 911


def token_of(ranks: int, request: int, position: int) -> int:
    """The token that a request gets at a position, from all ranks' experts."""
    return sum(share_of(rank, request, position) for rank in range(ranks)) % _VOCABULARY


class LostError(RuntimeError):
    """What a library of collectives says when another process is gone."""


class _Board:
    """What stands for TorchGroup: all put a value, and take everyone's."""

    def __init__(self, world: LockstepWorld, rank: int) -> None:
        self._world, self._rank, self._round = world, rank, 0

    def everyone(self, value: Any) -> list[Any]:
        world, number = self._world, self._round
        self._round += 1
        world.board[number][self._rank] = value
        world.turns.pause(self._rank, f"round {number}", lambda: self._is_over(number))
        said = world.board[number]
        if len(said) < world.size:
            raise LostError("connection closed by peer")
        return [said[rank] for rank in range(world.size)]

    def _is_over(self, number: int) -> bool:
        """An end is an error here, or nothing at all, as libraries of devices have it."""
        missing = set(range(self._world.size)) - self._world.board[number].keys()
        return not missing or (self._world.says_ends and bool(missing & self._world.ended.keys()))

    def barrier(self) -> None:
        self.everyone(None)

    def close(self) -> None:
        pass


class _Runner:
    """What stands for ModelRunner."""

    def __init__(self, config: Config, links: _Board, depth: int) -> None:
        self._config, self._links = config, links
        self.steps_behind = depth
        self._rank = config.parallel.data_parallel_rank
        self._ranks = config.parallel.data_parallel_size
        self._capacity: int | None = None
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

    def agree(self, capacity: int | None) -> None:
        self._capacity = capacity

    def serve(self) -> None:
        self._exchange([])

    def submit(self, batch: ScheduledBatch) -> ScheduledBatchOutput:
        assert self._capacity is None or batch.total_tokens_num <= self._capacity
        lengths = zip(batch.req_ids.tolist(), batch.context_lens.tolist(), strict=True)
        wanted = [place for place, samples in zip(lengths, batch.samples, strict=True) if samples]
        output = self._model.submit(batch)
        tokens = self._exchange(wanted)
        return dataclasses.replace(output, token_ids=np.array(tokens, dtype=np.int32))

    def sample(self, step: ScheduledBatchOutput, mask: TokenMask | None) -> None:
        raise AssertionError("no row asks for that")

    def collect(self, step: ScheduledBatchOutput) -> ScheduledBatchOutput:
        return step

    def close(self) -> None:
        pass

    def _exchange(self, wanted: Sequence[tuple[int, int]]) -> list[int]:
        """The tokens at places of requests, from every rank's experts, layer by layer."""
        tokens: list[int] = []
        for _ in range(_LAYERS):
            asked = self._links.everyone((self._capacity, list(wanted)))
            assert len({capacity for capacity, _ in asked}) == 1, "ranks run other steps"
            shares = [[share_of(self._rank, *place) for place in places] for _, places in asked]
            told = self._links.everyone(shares)
            own = [each[self._rank] for each in told]
            tokens = [sum(column) % _VOCABULARY for column in zip(*own, strict=True)]
        return tokens


class _Mesh(PeerMesh):
    def __init__(self, world: LockstepWorld, rank: int, bells: Any) -> None:
        super().__init__(bells)
        self._world, self._rank, self._sockets = world, rank, list(bells.values())

    def say(self, word: Word) -> None:
        self._world.turns.pause(self._rank, "a moment to speak")
        super().say(word)

    def hear(self, *, wait: bool) -> Iterator[tuple[int, Word]]:
        if wait:
            self._world.turns.pause(self._rank, "a word", self.is_readable)
        yield from super().hear(wait=False)

    def is_readable(self) -> bool:
        return bool(select.select(self._sockets, [], [], 0)[0])

    def close(self) -> None:
        """As the kernel does at the process' end."""
        for bell in self._sockets:
            bell.close()


class _Watch(PeerWatch):
    """Without a thread and without time: the world says what it sees, and when."""

    def __init__(self, world: LockstepWorld, rank: int, mesh: PeerMesh) -> None:
        super().__init__(mesh, lambda reason, _: world.end(rank, reason))
        self._world, self._rank = world, rank

    def has_lost(self) -> bool:
        return bool(self._world.ended)

    def wait_end(self) -> None:
        self._world.turns.pause(self._rank, "its end", lambda: False)


class _Wire:
    """What stands for CoreSockets, with one client."""

    clients = 1

    def __init__(self, world: LockstepWorld, rank: int) -> None:
        self._world, self._rank = world, rank
        self.inbox: deque[Any] = deque()

    def wake_on(self, fd: int) -> None:
        pass

    def wait(self) -> None:
        mesh = self._world.meshes[self._rank]
        self._world.turns.pause(
            self._rank, "a message", lambda: bool(self.inbox) or mesh.is_readable()
        )

    def receive(self) -> Iterator[Any]:
        self._world.turns.pause(self._rank, "its next step")
        while self.inbox:
            yield self.inbox.popleft()

    def send(self, client: int, body: Any) -> None:
        if isinstance(body, StreamBody):
            self._world.take(body)

    def send_all(self, body: Any) -> None:
        pass

    def announce(self, body: Any) -> None:
        pass


class _Core(EngineCore):
    def __init__(self, config: Config, wire: Any, executor: PeerExecutor) -> None:
        self._given = executor
        super().__init__(config, wire)

    def build_executor(self, order: MeshOrder | None) -> Executor:
        return self._given

    def check_blocks(self) -> None:
        pool = self._scheduler.blocks.pool
        pool.check_integrity()
        assert pool.num_held == 0, "a leaked block"


class LockstepWorld:
    """ended: ranks that are gone, each with why the others were told, None of a kill or an end in
    order; says_ends: whether a collective fails when another rank is gone, or never returns."""

    def __init__(self, config: Config, draw: random.Random) -> None:
        self.size = config.parallel.data_parallel_size
        self.says_ends = draw.random() < 0.5
        self.turns = Turns(draw)
        self.board: dict[int, dict[int, Any]] = defaultdict(dict)
        self.ended: dict[int, str | None] = {}
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, FinishedRow] = {}
        self.meshes = [
            _Mesh(self, rank, bells) for rank, bells in enumerate(mesh_sockets(self.size))
        ]
        self.watches = [_Watch(self, rank, mesh) for rank, mesh in enumerate(self.meshes)]
        self.wires = [_Wire(self, rank) for rank in range(self.size)]
        self.cores: list[_Core] = []
        depth = draw.choice((0, 1))
        for rank in range(self.size):
            parallel = dataclasses.replace(config.parallel, data_parallel_rank=rank)
            core = self._core(dataclasses.replace(config, parallel=parallel), depth)
            self.cores.append(core)
            self.turns.enter(rank, lambda rank=rank, core=core: self._live(rank, core))

    def _core(self, config: Config, depth: int) -> _Core:
        rank = config.parallel.data_parallel_rank
        board: Any = _Board(self, rank)
        runner: Any = _Runner(config, board, depth)
        executor = PeerExecutor(config, runner, board, self.meshes[rank], self.watches[rank])
        return _Core(config, self.wires[rank], executor)

    def _live(self, rank: int, core: EngineCore) -> None:
        core.start()
        core.run()
        self.ended[rank] = None
        self.meshes[rank].close()

    def take(self, body: StreamBody) -> None:
        """What a client hears of its requests."""
        for number, tokens in body.rows():
            assert number not in self.finished, "a token after the end"
            self.tokens[number] += tokens
        for row in body.finished:
            self.finished[row.request_id] = row

    def end(self, rank: int, reason: str | None = None) -> None:
        """The process of a rank is gone: killed, or by its own decision with a reason."""
        self.ended[rank] = reason
        self.turns.kill(rank)
        self.meshes[rank].close()
        for watch in self.watches:
            watch.notice()
