"""LockstepWorld: engine cores that share experts, as players of one process, without a model.

Core, scheduler, blocks, pipeline, lockstep and mesh are the product's, with real sockets between
the cores; what stands for the device's half is lockstep_runner.py, where a step that ranks do not
make together is a wrong token. A rank that is killed takes its sockets with it. Where the
configuration has a node for each core the sockets are TCP connections.
"""

from __future__ import annotations

import dataclasses
import fcntl
import random
import select
import socket
import sys
import termios
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from atom.config import Config
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.expert_parallel.executor import ExpertParallelExecutor, PeerWatch
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody
from atom.model_engine.wire.node_link import NodeLink
from atom.model_engine.wire.peer_mesh import (
    Connections,
    MeshOrder,
    PeerMesh,
    TokenCount,
    mesh_sockets,
)
from tests.support.ranks.lockstep_runner import Board, Runner, device_of
from tests.support.ranks.turns import Turns
from tests.support.waiting import wait_until


def _sockets_over_tcp(size: int) -> dict[int, Connections]:
    ends: dict[int, Connections] = {rank: {} for rank in range(size)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for one, other in combinations(ends, 2):
            calling = socket.create_connection(listener.getsockname())
            ends[one][other] = NodeLink(calling).let_go()
            ends[other][one] = NodeLink(listener.accept()[0]).let_go()
    return ends


class _Mesh(PeerMesh):
    def __init__(self, world: LockstepWorld, rank: int, connections: Connections) -> None:
        super().__init__(connections)
        self._world, self._rank, self._sockets = world, rank, list(connections.values())

    def send(self, count: TokenCount) -> None:
        self._world.turns.pause(self._rank, "a moment to send")
        with self._delivered():
            super().send(count)

    def leave(self, step: int) -> None:
        with self._delivered():
            super().leave(step)

    @contextmanager
    def _delivered(self) -> Iterator[None]:
        """What is said is there, though a network may take a moment: the world has no time."""
        theirs = [mesh.bell_to(self._rank) for mesh in self._world.open_meshes(self._rank)]
        before = [_unread(connection) for connection in theirs]
        yield
        for connection, unread in zip(theirs, before, strict=True):
            wait_until(lambda b=connection, u=unread: _unread(b) > u, "what was said is there")

    def receive(self, *, wait: bool) -> Iterator[tuple[int, TokenCount]]:
        if wait:
            self._world.turns.pause(self._rank, "a token count", self.is_readable)
        yield from super().receive(wait=False)

    def is_readable(self) -> bool:
        return bool(select.select(self._sockets, [], [], 0)[0])

    def close(self) -> None:
        """As the kernel does at the process' end."""
        for connection in self._sockets:
            connection.close()
        for mesh in self._world.open_meshes(self._rank):
            wait_until(lambda mesh=mesh: _has_end(mesh.bell_to(self._rank)), "the end is there")

    @property
    def is_closed(self) -> bool:
        return self._sockets[0].fileno() < 0

    def bell_to(self, peer: int) -> socket.socket:
        return self._connections[peer]


def _unread(connection: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


def _has_end(connection: socket.socket) -> bool:
    ends = select.poll()
    ends.register(connection, select.POLLRDHUP)
    return bool(ends.poll(0))


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

    def wait(self, seconds: float | None = None) -> None:
        assert seconds is None, "these ranks exchange no pages"
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
    def __init__(self, config: Config, wire: Any, executor: ExpertParallelExecutor) -> None:
        self._given = executor
        super().__init__(config, wire)

    def build_executor(self, order: MeshOrder | None) -> Executor:
        return self._given

    def check_blocks(self) -> None:
        pool = self._scheduler.blocks.pool
        pool.check_integrity()
        assert pool.num_referenced == 0, "a leaked block"


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
        far = config.parallel.nodes.count > 1
        ends = _sockets_over_tcp(self.size) if far else mesh_sockets(range(self.size))
        self.meshes = [_Mesh(self, rank, connections) for rank, connections in ends.items()]
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
        board: Any = Board(self, rank)
        runner: Any = Runner(config, board, depth)
        if depth:
            self.turns.enter(device_of(rank), runner.run_device)
        executor = ExpertParallelExecutor(
            config, runner, board, self.meshes[rank], self.watches[rank]
        )
        return _Core(config, self.wires[rank], executor)

    def _live(self, rank: int, core: EngineCore) -> None:
        core.start()
        core.run()
        self.ended[rank] = None
        self.meshes[rank].close()

    @property
    def living(self) -> list[int]:
        """Ranks whose process has not ended."""
        return [rank for rank in range(self.size) if rank not in self.ended]

    def open_meshes(self, but: int) -> list[_Mesh]:
        """Of the processes that have not ended, but one's."""
        meshes = (mesh for rank, mesh in enumerate(self.meshes) if rank != but)
        return [mesh for mesh in meshes if not mesh.is_closed]

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
        for player in {rank, device_of(rank)} & {*self.turns.playing}:
            self.turns.kill(player)
        self.meshes[rank].close()
        for watch in self.watches:
            watch.notice()
