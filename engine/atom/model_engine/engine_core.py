"""EngineCore: the loop of one engine process — receive, schedule, execute, update, publish.

Owns the scheduler and the runners; knows tokens, not text, and no HTTP. Fed by CoreManager over a
DEALER socket, answers over a PUSH socket (engine_protocol has every message). The loop blocks in a
poll when there is nothing to do, so an idle engine costs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import zmq

from atom.config import Config
from atom.model_engine.async_proc import AsyncIOProcManager
from atom.model_engine.engine_protocol import (
    AbortBody,
    AddBody,
    EngineReport,
    FinishedRow,
    ProgressBody,
    ShutdownBody,
    StreamBody,
    UtilityBody,
    UtilityResponseBody,
    decode,
    encode,
)
from atom.model_engine.scheduler import Scheduler, StepResult
from atom.model_engine.step_pipeline import StepPipeline, build_scheduler

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5


class EngineCore:
    """One rank's engine behind its two sockets."""

    def __init__(self, config: Config, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes]) -> None:
        self._config = config
        self._inbox = inbox
        self._outbox = outbox
        self._executor = AsyncIOProcManager(config)
        self._scheduler: Scheduler
        self._pipeline: StepPipeline
        self._running = True
        self._next_heartbeat = 0.0
        self._progress_sent = ("", -1)
        # What a UTILITY message may call; each returns something msgspec can encode.
        self._utilities: dict[str, Callable[[], Any]] = {
            "reset_prefix_cache": self._reset_prefix_cache,
            "check_integrity": self._check_integrity,
        }

    def start(self) -> EngineReport:
        """Load and size everything; announces READY. Raises AtomError on a bad model or option."""
        report: EngineReport = self._executor.call_func("initialize", self._progress)
        self._scheduler = build_scheduler(self._config, report)
        self._pipeline = StepPipeline(
            self._scheduler, self._executor, depth=self._executor.steps_behind
        )
        self._send(report)
        return report

    def run(self) -> None:
        """Serve until SHUTDOWN arrives."""
        while self._running:
            self._receive(wait=not self._pipeline.has_work())
            self._step()
            self._heartbeat()

    # ---- one iteration ------------------------------------------------------------------------

    def _receive(self, *, wait: bool) -> None:
        """Handle every message that is there; with `wait`, sleep until one comes or the next
        heartbeat is due."""
        timeout_ms = 0
        if wait:
            timeout_ms = max(0, int((self._next_heartbeat - time.monotonic()) * 1000) + 1)
        while self._running and self._inbox.poll(timeout_ms):
            self._handle(decode(self._inbox.recv_multipart()))
            timeout_ms = 0

    def _handle(self, message: Any) -> None:
        if isinstance(message, AddBody):
            for request in message.requests:
                self._scheduler.add(request)
        elif isinstance(message, AbortBody):
            self._publish_finished(self._scheduler.abort(message.request_ids))
        elif isinstance(message, UtilityBody):
            self._send(self._call_utility(message))
        elif isinstance(message, ShutdownBody):
            self._running = False
        else:
            raise RuntimeError(f"message {type(message).__name__} is not for an engine core")

    def _step(self) -> None:
        result = self._pipeline.step(time.monotonic())
        if result is not None:
            self._publish(result)

    def _publish(self, result: StepResult) -> None:
        if len(result.token_ids) == 0:
            return
        self._send(
            StreamBody(
                request_ids=result.request_ids.tobytes(),
                token_ids=result.token_ids.tobytes(),
                finished=result.finished,
            )
        )

    def _publish_finished(self, finished: list[FinishedRow]) -> None:
        if finished:
            self._send(StreamBody(request_ids=b"", token_ids=b"", finished=finished))

    def _heartbeat(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send(self._scheduler.stats())

    # ---- utilities ----------------------------------------------------------------------------

    def _call_utility(self, call: UtilityBody) -> UtilityResponseBody:
        utility = self._utilities.get(call.method)
        if utility is None:
            known = ", ".join(self._utilities)
            return UtilityResponseBody(
                call.call_id, error=f"no utility {call.method!r}; there are: {known}"
            )
        try:
            return UtilityResponseBody(call.call_id, error=None, result=utility())
        except Exception as error:
            logger.exception("utility %s failed", call.method)
            return UtilityResponseBody(call.call_id, error=f"{type(error).__name__}: {error}")

    def _reset_prefix_cache(self) -> None:
        self._scheduler.blocks.reset_prefix_cache()

    def _check_integrity(self) -> None:
        self._scheduler.blocks.pool.check_integrity()

    # ---- messages -----------------------------------------------------------------------------

    def _progress(self, phase: str, share: float) -> None:
        """Tell the manager where start-up stands, once per percent."""
        percent = int(share * 100)
        if (phase, percent) != self._progress_sent:
            self._progress_sent = (phase, percent)
            self._send(ProgressBody(phase=phase, fraction=share))

    def _send(self, body: Any) -> None:
        self._outbox.send_multipart(encode(body))
