"""ExpertGroup: engine cores that share experts and stay for many models.

The test's own process is rank 0. Each other rank is `python -m tests.support.ranks.expert_group`,
which serves one model after the other, as lines on its standard input say. Every rank has a
scheduler and requests of its own, and computes its experts for the others until all are done.
"""

from __future__ import annotations

import dataclasses
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from atom.collectives.torch_group import Place, TorchGroup, find_store, open_store
from atom.eplb_config import EPLBConfig
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.expert_parallel.executor import ExpertParallelExecutor, PeerWatch
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.wire.peer_mesh import PeerMesh, mesh_sockets
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.waiting import HANG_SECONDS


class Arrival(msgspec.Struct, frozen=True):
    """A greedy request. turn: of its rank's loop, at which it comes; abort_after: tokens of its
    answer behind which it is given up, None for never."""

    prompt: list[int]
    max_tokens: int
    turn: int = 0
    abort_after: int | None = None


class _Job(msgspec.Struct, frozen=True):
    model: str
    options: dict[str, Any]
    arrivals: list[Arrival]


class RankResult(msgspec.Struct, frozen=True):
    """What a rank's requests got, in their order, and what it was left with. served: steps that it
    computed without rows of its own; expert_moves: slots whose expert changed, over all ranks."""

    tokens: list[list[int]]
    blocks_held: int
    preemptions: int
    cached_tokens: int
    weights_bytes: int
    served: int
    expert_moves: int


class ExpertGroup:
    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size = size
        self._device = device
        meshes = mesh_sockets(range(size))
        store = open_store(size)
        self._followers = [
            _start((str(rank), str(size), str(store.port), device), meshes[rank])
            for rank in range(1, size)
        ]
        for rank in range(1, size):
            for connection in meshes[rank].values():
                connection.close()
        self._rank = _Rank(0, PeerMesh(meshes[0]), _group(0, size, device, store))

    def run(
        self, model: str, arrivals: Sequence[Sequence[Arrival]], **options: Any
    ) -> list[RankResult]:
        """Serve each rank's arrivals together; every rank's result."""
        options = {
            "device": self._device, **options, "data_parallel_size": self.size,
            "enable_dp_attention": True, "enable_expert_parallel": True,
        }  # fmt: skip
        jobs = [_Job(model, options, list(own)) for own in arrivals]
        for follower, job in zip(self._followers, jobs[1:], strict=True):
            _write(follower, msgspec.json.encode(job))
        told = self._rank.serve(jobs[0], _Reports(self._followers))
        return [told[0], *(msgspec.json.decode(line, type=RankResult) for line in told[1])]

    def close(self) -> None:
        for follower in self._followers:
            assert follower.stdin is not None
            follower.stdin.close()
        try:
            assert [follower.wait(HANG_SECONDS) for follower in self._followers] == [0] * (
                self.size - 1
            )
        finally:
            for follower in self._followers:
                follower.kill()
        self._rank.group.close()


class _Reports:
    """Rank 0's view of the end: when every follower has told its result."""

    def __init__(self, followers: list[subprocess.Popen[bytes]]) -> None:
        self._followers = followers
        self._lines: dict[int, bytes] = {}

    @property
    def fds(self) -> list[int]:
        return [
            follower.stdout.fileno()
            for number, follower in enumerate(self._followers)
            if number not in self._lines and follower.stdout is not None
        ]

    def take(self, fd: int) -> None:
        for number, follower in enumerate(self._followers):
            assert follower.stdout is not None
            if follower.stdout.fileno() == fd:
                line = follower.stdout.readline()
                assert line, "a follower ended"
                self._lines[number] = line

    def is_over(self, result: RankResult) -> bool:
        if len(self._lines) < len(self._followers):
            return False
        for follower in self._followers:
            _write(follower, b"end")
        return True

    @property
    def lines(self) -> list[bytes]:
        return [self._lines[number] for number in sorted(self._lines)]


class _Orders:
    """A follower's: it tells its result once, and ends when it is told to."""

    lines: Sequence[bytes] = ()

    def __init__(self) -> None:
        self.fds = [sys.stdin.fileno()]
        self._ended = self._told = False

    def take(self, fd: int) -> None:
        assert sys.stdin.buffer.raw.read(4) == b"end\n"  # type: ignore[attr-defined]
        self._ended = True

    def is_over(self, result: RankResult) -> bool:
        if not self._told:
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
            sys.stdout.buffer.flush()
            self._told = True
        return self._ended


class _Driver(CoreDriver):
    def __init__(self, rank: _Rank, model: str, **options: Any) -> None:
        self._rank = rank
        super().__init__(model, **options)

    def build_executor(self) -> Executor:
        parallel = dataclasses.replace(self.config.parallel, data_parallel_rank=self._rank.number)
        self.config = dataclasses.replace(self.config, parallel=parallel)
        rank = self._rank
        runner = ModelRunner(self.config, links=rank.group)
        return ExpertParallelExecutor(self.config, runner, rank.group, rank.mesh, rank.watch)


class _Rank:
    def __init__(self, number: int, mesh: PeerMesh, group: TorchGroup) -> None:
        self.number, self.mesh, self.group = number, mesh, group
        self.watch = PeerWatch(mesh, lambda reason, user_error: None)
        self.watch.start()
        self._engine: tuple[bytes, CoreDriver] | None = None

    def serve(self, job: _Job, ends: _Reports | _Orders) -> tuple[RankResult, Sequence[bytes]]:
        play = _Play(self._engine_of(job), job.arrivals)
        while True:
            if play.turn():
                continue
            result = play.result()
            if ends.is_over(result):
                return result, ends.lines
            self._sleep(ends)

    def _engine_of(self, job: _Job) -> CoreDriver:
        """The one before, with its prefix cache, when it is asked for again."""
        key = msgspec.json.encode((job.model, job.options), order="sorted")
        if self._engine is None or self._engine[0] != key:
            self._engine = None
            options = dict(job.options)
            if (balance := options.pop("balance", None)) is not None:
                options["balance"] = EPLBConfig(**balance)
            self._engine = key, _Driver(self, job.model, **options)
        return self._engine[1]

    def _sleep(self, ends: _Reports | _Orders) -> None:
        poll = select.poll()
        for fd in (*self.mesh.fds, *ends.fds):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll():
            if fd in ends.fds:
                ends.take(fd)


class _Play:
    """One rank's loop over its arrivals, as EngineCore.turn is one over messages."""

    def __init__(self, engine: CoreDriver, arrivals: Sequence[Arrival]) -> None:
        self._engine = engine
        self._waiting = sorted(enumerate(arrivals), key=lambda each: each[1].turn)
        self._numbers: dict[int, int] = {}
        self._arrivals = arrivals
        self._tokens: list[list[int]] = [[] for _ in arrivals]
        self._turn = self._served = 0

    def turn(self) -> bool:
        """Whether anything was done."""
        self._arrive()
        engine = self._engine
        if engine.pipeline.has_work():
            self._take(engine.step())
            engine.scheduler.blocks.pool.check_integrity()
        elif engine.executor.is_called():
            engine.executor.join()
            self._served += 1
        elif not self._waiting:
            return False
        self._turn += 1
        return True

    def result(self) -> RankResult:
        stats, load = self._engine.scheduler.stats(), self._engine.executor.expert_load
        return RankResult(
            tokens=self._tokens,
            blocks_held=self._engine.scheduler.blocks.pool.num_referenced,
            preemptions=stats.preemptions_total,
            cached_tokens=stats.cached_tokens_total,
            weights_bytes=self._engine.report.weights_bytes,
            served=self._served,
            expert_moves=load.moves if load is not None else 0,
        )

    def _arrive(self) -> None:
        while self._waiting and self._waiting[0][1].turn <= self._turn:
            index, arrival = self._waiting.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens, ignore_eos=True)
            self._numbers[self._engine.add(arrival.prompt, params)] = index

    def _take(self, result: Any) -> None:
        for number, run in () if result is None else result.runs():
            index = self._numbers[number]
            self._tokens[index] += run
            limit = self._arrivals[index].abort_after
            if limit is not None and len(self._tokens[index]) >= limit:
                self._engine.pipeline.abort([number])


def _group(rank: int, size: int, device: str, store: Any) -> TorchGroup:
    own = torch.device("cpu") if device == "cpu" else torch.device("cuda", rank)
    return TorchGroup(Place(rank, size, own, np.zeros(1, dtype=np.int64)), store)


def _start(order: Sequence[str], mesh: dict[int, socket.socket]) -> subprocess.Popen[bytes]:
    connections = ",".join(f"{peer}:{connection.fileno()}" for peer, connection in mesh.items())
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *order, connections],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[connection.fileno() for connection in mesh.values()],
    )


def _write(follower: subprocess.Popen[bytes], line: bytes) -> None:
    assert follower.stdin is not None
    follower.stdin.write(line + b"\n")
    follower.stdin.flush()


def _follow(rank: int, size: int, port: int, device: str, connections: str) -> None:
    pairs = (pair.split(":") for pair in connections.split(","))
    mesh = PeerMesh({int(peer): socket.socket(fileno=int(fd)) for peer, fd in pairs})
    own = _Rank(rank, mesh, _group(rank, size, device, find_store(port, size)))
    while line := _line():
        own.serve(msgspec.json.decode(line, type=_Job), _Orders())


def _line() -> bytes:
    """One line of standard input, byte by byte: what follows is polled for."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = sys.stdin.buffer.raw.read(1)  # type: ignore[attr-defined]
        if not byte:
            return b""
        line += byte
    return bytes(line)


if __name__ == "__main__":
    _follow(*map(int, sys.argv[1:4]), *sys.argv[4:6])
