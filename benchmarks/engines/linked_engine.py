"""An engine that exchanges KV pages, in a process of its own and without a server.

`EngineProcess` starts it and talks to it over a pipe: requests go in, and each step's rows come out
with the time at which the step was done. The loop is the engine core's own, step for step. Used by
benchmarks/workloads/divided_load.py.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.kv_transfer_config.values import TRANSPORTS, KVTransferConfig
from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import TicketNote, TransferOutcome
from atom.model_engine.wire.engine_protocol import FinishedRow

START_SECONDS = 200.0
_END_SECONDS = 20.0
_BLOCKED_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Rows:
    """The news of one step or exchange. seconds: perf_counter of this machine, when it was done."""

    seconds: float
    request_ids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    finished: list[FinishedRow]
    outcomes: list[TransferOutcome]


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The options of an engine, and the environment of its process. transport: of its pages."""

    model: str
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    transport: str = "auto"


class EngineProcess:
    """One engine. pipe: rows can be received from it."""

    def __init__(self, order: EngineOrder) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(order, theirs))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Raises `SystemExit` if the engine does not start."""
        if not self.pipe.poll(START_SECONDS) or self.pipe.recv() != "ready":
            raise SystemExit("an engine has not started; see above")

    def add(self, request: Request) -> None:
        self.pipe.send_bytes(msgspec.msgpack.encode(request))

    def close(self) -> None:
        """End the engine, also one that has not started."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(b"")
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()


def ticket_of(row: FinishedRow) -> TicketNote:
    """Return the ticket of a prefill leg that ended. Raises `SystemExit` if it kept nothing."""
    if row.ticket is None or not row.ticket.ticket:
        raise SystemExit(f"a prefill leg kept nothing: {row}")
    return row.ticket


def _run(order: EngineOrder, pipe: Connection) -> None:
    os.environ.update(order.environment)
    logging.basicConfig()
    logging.getLogger("atom.model_engine.kv_transfer").setLevel(logging.INFO)  # names the transport
    try:
        engine = _Engine(order)
    except BaseException:
        pipe.send("failed")
        raise
    pipe.send("ready")
    while engine.turn(pipe):
        pass
    engine.close()


class _Engine:
    def __init__(self, order: EngineOrder) -> None:
        # Imported here, since the process that measures needs no torch.
        from atom.model_engine.kv_transfer.request_desk import RequestDesk
        from atom.model_engine.kv_transfer.setup import build_transfer
        from benchmarks.engines.offline_engine import OfflineEngine

        # A measurement holds more prompts under way than a server would let wait.
        transfer_config = KVTransferConfig(
            port=0, max_held_fraction=0.95, transports=TRANSPORTS[order.transport]
        )
        self._engine = OfflineEngine(order.model, kv_transfer=transfer_config, **order.options)
        own = self._engine
        transfer = build_transfer(own.config, own.scheduler, own.executor, own.report, {})
        assert transfer is not None
        self._wake_fd = transfer.wake_fd
        self._desk = RequestDesk(own.pipeline, transfer)

    def turn(self, pipe: Connection) -> bool:
        """Take messages, exchange pages and run one step; returns False at the end."""
        pipeline = self._engine.pipeline
        seconds: float | None = 0.0
        if not pipeline.has_work():
            pipeline.pause(time.monotonic())
            seconds = self._desk.seconds_left
        ready = wait([pipe, self._wake_fd], seconds)
        if pipe in ready:
            while pipe.poll():
                if not (message := pipe.recv_bytes()):
                    return False
                request = msgspec.msgpack.decode(message, type=Request)
                self._tell(pipe, None, self._desk.enter(request), [])
        for news in self._desk.exchange_pages():
            self._tell(pipe, None, news.finished, news.outcomes)
        result = pipeline.step(time.monotonic())
        if result is not None:
            self._tell(pipe, result, result.finished, [])
        elif pipeline.is_blocked and not self._desk.make_room():
            wait([pipe, self._wake_fd], _BLOCKED_SECONDS)
        return True

    def close(self) -> None:
        self._desk.close()
        self._engine.close()

    def _tell(
        self,
        pipe: Connection,
        result: Any,
        finished: list[FinishedRow],
        outcomes: list[TransferOutcome],
    ) -> None:
        ids = np.zeros(0, np.int64) if result is None else result.request_ids
        tokens = np.zeros(0, np.int32) if result is None else result.token_ids
        if len(ids) or finished or outcomes:
            rows = Rows(time.perf_counter(), ids, tokens, finished, outcomes)
            pipe.send(rows)
