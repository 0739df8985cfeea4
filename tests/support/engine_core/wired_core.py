"""WiredCore: a real engine core in this process, behind its messages but without sockets.

What a client would send goes through the wire's own encoding and back, so that the core gets what
it would get of a process that is another's, or has a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from atom.config import EngineOptions, build_config
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.transfer_legs import TransferOutcome
from atom.model_engine.wire.core_sockets import CoreSockets
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody, decode, encode


class MemorySockets:
    """A client's messages in a list, and the core's answers taken apart."""

    clients = 1

    def __init__(self) -> None:
        self.inbox: list[list[bytes]] = []
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, list[FinishedRow]] = {}
        self.transfers: dict[int, TransferOutcome] = {}
        self.malformed = 0
        self.others: list[msgspec.Struct] = []

    def wake_on(self, fd: int) -> None:
        """Nothing sleeps here."""

    def wait(self, seconds: float | None = None) -> None:
        """Nothing sleeps here."""

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


class WiredCore:
    def __init__(self, model: Path, **options: Any) -> None:
        self.config = build_config(EngineOptions.of(model=str(model), device="cpu", **options))
        self.sockets = MemorySockets()
        self.core = EngineCore(self.config, cast(CoreSockets, self.sockets))
        self.core.start()

    def send(self, *frames: bytes) -> None:
        self.sockets.inbox.append(list(frames))

    def turn(self) -> None:
        self.core.turn()

    def turn_until_done(self, numbers: set[int]) -> None:
        """Turn until all of these requests have ended."""
        while not numbers <= self.sockets.finished.keys():
            self.turn()
