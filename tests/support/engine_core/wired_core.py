"""WiredCore: a real engine core in this process, behind its messages but without sockets.

What a client would send goes through the wire's own encoding and back, so that the core gets what
it would get of a process that is another's, or has a fault.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.executor.base import Executor
from atom.model_engine.transfer_legs import TransferOutcome
from atom.model_engine.wire.core_sockets import CoreSockets
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody, decode, encode
from atom.model_engine.wire.peer_mesh import MeshOrder
from tests.support.ranks.rank_group import RankGroup

_MOMENT_MS = 1  # of a core that has nothing to do


class MemorySockets:
    """A client's messages in a list, and the core's answers taken apart."""

    clients = 1

    def __init__(self) -> None:
        self._poller = select.poll()
        self.inbox: list[list[bytes]] = []
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, list[FinishedRow]] = {}
        self.transfers: dict[int, TransferOutcome] = {}
        self.malformed = 0
        self.others: list[msgspec.Struct] = []

    def wake_on(self, fd: int) -> None:
        self._poller.register(fd, select.POLLIN)

    def wait(self, seconds: float | None = None) -> None:
        """Sleep until a descriptor is readable, for a moment at most: another core of this process
        may be what it waits for."""
        if not self.inbox:
            self._poller.poll(_MOMENT_MS)

    def receive(self) -> Iterator[msgspec.Struct]:
        frames, self.inbox = self.inbox, []
        for message in frames:
            try:
                yield decode(message)
            except ValueError:
                self.malformed += 1

    def send(self, client: int, body: msgspec.Struct) -> None:
        body = decode(encode(body))
        if not isinstance(body, StreamBody):
            self.others.append(body)
            return
        for number, tokens in body.rows():
            self.tokens.setdefault(number, []).extend(tokens)
        self.transfers |= {outcome.request_id: outcome for outcome in body.transfers}
        for row in body.finished:
            self.finished.setdefault(row.request_id, []).append(row)

    def send_all(self, body: msgspec.Struct) -> None:
        """Heartbeats tell nothing here."""

    def announce(self, body: msgspec.Struct) -> None:
        """Nobody waits for the start."""


class _RankedCore(EngineCore):
    """The core of a model that several ranks share. ranks: None for one rank."""

    def __init__(self, config: Config, sockets: CoreSockets, ranks: RankGroup | None) -> None:
        self._ranks = ranks
        super().__init__(config, sockets)

    def build_executor(self, order: MeshOrder | None) -> Executor:
        if self._ranks is None:
            return super().build_executor(order)
        return self._ranks.executor(self._config)


class WiredCore:
    def __init__(self, model: Path, *, ranks: RankGroup | None = None, **options: Any) -> None:
        """ranks: that share the model; None for one rank."""
        if ranks is not None:
            options = {"tensor_parallel_size": ranks.size, **options}
        self._ranks = ranks
        options = {"device": "cpu", **options}
        self.config = build_config(EngineOptions.of(model=str(model), **options))
        self.sockets = MemorySockets()
        self.core = _RankedCore(self.config, cast(CoreSockets, self.sockets), ranks)
        self.core.start()

    def close(self) -> None:
        """End the exchange of pages, and let the ranks go for another model."""
        self.core._desk.close()
        if self._ranks is not None:
            self._ranks.let_go()

    def send(self, *frames: bytes) -> None:
        self.sockets.inbox.append(list(frames))

    def turn(self) -> None:
        self.core.turn()

    def turn_until_done(self, numbers: set[int]) -> None:
        """Turn until all of these requests have ended."""
        while not numbers <= self.sockets.finished.keys():
            self.turn()
