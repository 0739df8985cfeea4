"""EngineCore: the loop of one engine process — receive, schedule, execute, update, publish.

Owns one data-parallel rank's scheduler and runners; knows tokens, not text, and no HTTP. Serves
every client (CoreManager) over CoreSockets; engine_protocol has every message. The loop blocks in a
poll when there is nothing to do, so an idle engine costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.config import Config
from atom.config_values import SleepLevel
from atom.errors import AtomError, ModelError, RequestError
from atom.model_engine.control import (
    CheckWeights,
    LoadLora,
    Sleep,
    UnloadLora,
    UpdateWeights,
    WakeUp,
)
from atom.model_engine.control_calls import ControlCalls
from atom.model_engine.executor.base import Executor, GroupEndedError
from atom.model_engine.executor.choice import build_executor
from atom.model_engine.front.loras.adapter_digests import adapter_digest
from atom.model_engine.kv_disk_setup import build_store
from atom.model_engine.kv_events.publisher import KVEventPublisher
from atom.model_engine.kv_transfer.request_desk import RequestDesk
from atom.model_engine.kv_transfer.setup import build_transfer
from atom.model_engine.lora_loading import LoraLoading
from atom.model_engine.outlook.outlook import Outlook
from atom.model_engine.request import Request
from atom.model_engine.runner.profiler import TorchProfiler
from atom.model_engine.schedule.step_result import StepResult
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline, build_guided, build_scheduler
from atom.model_engine.wire.core_sockets import CoreSockets
from atom.model_engine.wire.engine_protocol import (
    AbortBody,
    AbortClientBody,
    AddBody,
    EngineReport,
    ExecutorFailedBody,
    FinishedRow,
    ProgressBody,
    RankStats,
    RefusedRequest,
    SalvagedAdd,
    ShutdownBody,
    StreamBody,
    UtilityBody,
    client_of,
    clients_of,
    refused_row,
)
from atom.model_engine.wire.heartbeat import BEAT_SECONDS, Pulse
from atom.model_engine.wire.peer_mesh import MeshOrder
from atom.model_engine.wire.request_bounds import RequestBounds

logger = logging.getLogger(__name__)

_BLOCKED_SECONDS = 0.02  # between looks for blocks that other engines read


class EngineCore:
    """Run one data-parallel rank's engine loop and serve its sockets."""

    def __init__(
        self, config: Config, sockets: CoreSockets, order: MeshOrder | None = None
    ) -> None:
        """order: the way to other cores that share experts with this one."""
        self._config = config
        self._sockets = sockets
        self._executor = self.build_executor(order)
        for fd in self._executor.wake_fds:
            sockets.wake_on(fd)
        self._guided = build_guided(config)
        sockets.wake_on(self._guided.wake_fd)
        self._scheduler: Scheduler
        self._pipeline: StepPipeline
        self._desk: RequestDesk
        self._kv_events: KVEventPublisher | None = None
        self._bounds = RequestBounds(config.model)
        # Of the adapters that requests may have, those of the start first.
        self._lora_numbers = set(range(1, 1 + len(config.lora.modules if config.lora else ())))
        self._loras: LoraLoading | None = None
        if config.lora is not None and config.lora.may_load:
            pages_leave = config.tier.disk_dir is not None or config.cache.kv_transfer is not None
            digest_of = adapter_digest if pages_leave else None
            self._loras = LoraLoading(self._executor, self._lora_numbers, digest_of)
            sockets.wake_on(self._loras.wake_fd)
        self._rank = config.parallel.data_parallel_rank
        self._running = True
        self._asleep = False
        self._pulse = Pulse()
        self._ended = threading.Event()
        self._tellings = itertools.count(1)
        self._progress_sent = ("", -1)
        self._profiler = TorchProfiler(
            config.execution.torch_profiler_dir, config.parallel.data_parallel_rank
        )
        self._calls = ControlCalls(config, sockets)

    def build_executor(self, order: MeshOrder | None) -> Executor:
        """Return the executor that runs this core's batches."""
        return build_executor(self._config, self._fail, order)

    def start(self) -> EngineReport:
        """Load and size everything; announces READY. Raises AtomError on a bad model or option."""
        report = self._executor.initialize(self._progress)
        self._executor.call_after_layers(self._pulse.tick)
        pages = self._executor.pages
        store = build_store(self._config, report, pages)
        self._scheduler = build_scheduler(self._config, report, pages, store)
        if self._scheduler.tiers is not None:
            for fd in self._scheduler.tiers.wake_fds:
                self._sockets.wake_on(fd)
        self._pipeline = StepPipeline(
            self._scheduler,
            self._executor,
            depth=self._executor.steps_behind,
            guided=self._guided,
            join=self._executor.join,
            outlook=Outlook(self._config.scheduler),
        )
        events = self._config.cache.kv_events
        if events is not None:
            self._kv_events = KVEventPublisher(events, self._rank, self._scheduler.blocks)
        adapters = {} if self._loras is None else self._loras.digests
        transfer = build_transfer(self._config, self._scheduler, self._executor, report, adapters)
        if transfer is not None:
            self._sockets.wake_on(transfer.wake_fd)
            report = msgspec.structs.replace(report, kv_layout=transfer.layout)
        self._desk = RequestDesk(self._pipeline, transfer)
        self._sockets.announce(report)
        return report

    def run(self) -> None:
        """Serve until SHUTDOWN arrives."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            with contextlib.suppress(GroupEndedError):
                while self._running:
                    self.turn()
            if unfinished := self._scheduler.exit_engine():
                logger.info("the engine ends with %d requests unfinished", unfinished)
            self._executor.close()
        finally:
            self._ended.set()
            self._guided.close()
            if self._loras is not None:
                self._loras.close()
            if self._kv_events is not None:
                self._kv_events.close()
            self._desk.close()
            if self._scheduler.tiers is not None:
                self._scheduler.tiers.close()

    # ---- one iteration ------------------------------------------------------------------------

    def turn(self) -> None:
        """Process the received messages, blocking for one if there is no work; then run one
        step."""
        has_work = self._pipeline.has_work() or self._executor.is_called()
        if self._asleep or not has_work:
            self._pipeline.pause(time.monotonic())
            with self._pulse.at_rest():
                self._sockets.wait(self._desk.seconds_left)
        for message in self._sockets.receive():
            self._handle(message)
        if not self._running or self._asleep:
            return
        if self._loras is not None and self._loras.has_work:
            self._loras.turn(self._scheduler, self._desk.open_requests())
        for news in self._desk.exchange_pages():
            stats = self._stats()
            told = StreamBody(b"", b"", news.finished, rank_stats=stats, transfers=news.outcomes)
            self._sockets.send(news.client, told)
        result = self._pipeline.step(time.monotonic())
        if result is not None:
            self._publish(result)
        elif self._pipeline.is_blocked and not self._desk.make_room():
            with self._pulse.at_rest():
                self._sockets.wait(_BLOCKED_SECONDS)
        if self._kv_events is not None:
            self._kv_events.publish()
        self._profiler.stop_if_forgotten()
        self._pulse.tick()

    def _handle(self, message: Any) -> None:
        if isinstance(message, AddBody | SalvagedAdd):
            for request in message.requests:
                self._add(request)
            if isinstance(message, SalvagedAdd):
                self._refuse(message.refused)
        elif isinstance(message, AbortBody):
            self._publish_finished(self._desk.abort(message.request_ids))
        elif isinstance(message, AbortClientBody):
            numbers = self._desk.open_requests()
            self._desk.abort([each for each in numbers if client_of(each) == message.client])
        elif isinstance(message, UtilityBody):
            self._calls.answer(message, self)
        elif isinstance(message, ShutdownBody):
            self._running = False
        else:
            logger.warning("ignored a %s: not for an engine core", type(message).__name__)

    def _add(self, request: Request) -> None:
        if not 0 <= client_of(request.id) < self._sockets.clients:
            logger.warning("refused request %d: of no client of this engine", request.id)
            return
        if self._desk.knows(request.id):
            logger.warning("refused request %d: one of this number is open", request.id)
            return
        try:
            self._bounds.check(request)
            self._check_lora(request)
            if refused := self._desk.enter(request):
                self._publish_finished(refused)
        except Exception as error:  # of this one request, and no reason to end the others
            self._publish_finished([self._desk.undo(request, error)])

    def _refuse(self, refused: list[RefusedRequest]) -> None:
        """Report refused requests to their clients, except those whose numbers are open."""
        ends = [
            refused_row(each.id, each.reason, each.param)
            for each in refused
            if 0 <= client_of(each.id) < self._sockets.clients and not self._desk.knows(each.id)
        ]
        if ends:
            self._publish_finished(ends)

    def _check_lora(self, request: Request) -> None:
        """Raises `RequestError` for an adapter that this core does not hold."""
        lora = request.lora
        if lora is not None and lora.lora_int_id not in self._lora_numbers:
            raise RequestError(f"no adapter {lora.lora_name!r} is held here", param="model")

    def _publish(self, result: StepResult) -> None:
        """Send each client the rows of its requests, in one message."""
        if not _says_anything(result):
            return
        stats = self._stats()
        if self._sockets.clients == 1:
            self._sockets.send(0, result.message(stats))
            return
        for client in range(self._sockets.clients):
            part = result.where(partial(_is_of, client))
            if _says_anything(part):
                self._sockets.send(client, part.message(stats))

    def _publish_finished(self, finished: list[FinishedRow]) -> None:
        """Publish ends that came without a token."""
        stats = self._stats()
        for client in {client_of(row.request_id) for row in finished}:
            rows = [row for row in finished if client_of(row.request_id) == client]
            self._sockets.send(client, StreamBody(b"", b"", rows, rank_stats=stats))

    def _stats(self) -> RankStats:
        """Return the core's statistics. The heartbeat's thread calls this too, perhaps in the
        middle of a step: later readings must not get an older number, so the number is taken
        first."""
        number = next(self._tellings)
        stats, load = self._desk.told_in(self._pipeline.stats()), self._executor.expert_load
        if load is not None:
            stats = msgspec.structs.replace(
                stats,
                expert_tokens_mean=load.mean,
                expert_tokens_most=load.most,
                # All ranks count the same moves, and the ranks' totals are added up.
                expert_moves_total=load.moves if self._rank == 0 else 0,
            )
        outlook = self._pipeline.outlook()
        return RankStats(rank=self._rank, number=number, stats=stats, outlook=outlook)

    # ---- heartbeat ----------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats on a separate thread, so that a long step does not silence a core that
        makes progress."""
        last = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            if self._pulse.got_on():
                last = now
                self._sockets.send_all(self._stats())
            elif now - last >= self._config.health.stall_seconds:
                self._end_stuck(now - last)

    def _end_stuck(self, seconds: float) -> None:
        """End this rank if others wait for it in vain; with a single runner the clients decide."""
        behind = self._executor.who_is_behind()
        if behind is not None:
            self._fail(f"{behind}, and nothing was computed for {seconds:.0f} s", False)

    def _fail(self, reason: str, user_error: bool) -> None:
        """End this process, and with it every rank. Any thread may call this, since the one that
        runs steps may be waiting on a device for a lost rank."""
        logger.error("the group of ranks ends: %s", reason)
        self._sockets.say_last(ExecutorFailedBody(message=reason, user_error=user_error))
        os._exit(1)

    # ---- control calls ---------------------------------------------------------------------------

    def start_profile(self) -> None:
        self._profiler.start()

    def stop_profile(self) -> str:
        with self._pulse.at_rest():  # writing a long trace is no hang
            return self._profiler.stop()

    def reset_prefix_cache(self) -> None:
        self._scheduler.blocks.reset_prefix_cache()
        self._scheduler.tokens.forget_answers()

    def load_lora(self, call: LoadLora, tell: Callable[[str | None], None]) -> None:
        self._loading().load(call, tell)

    def unload_lora(self, call: UnloadLora) -> None:
        """Remove an adapter, and its cached blocks at once: no later request can hit them."""
        self._loading().unload(call.number)
        self._scheduler.blocks.retire_lora(call.number)

    def _loading(self) -> LoraLoading:
        assert self._loras is not None, "the calls of adapters are served if they may be loaded"
        return self._loras

    def sleep(self, call: Sleep) -> None:
        """Release the device's memory. New requests wait, and with `keep` open ones do too. Raises
        `AtomError` for an open request without `keep`."""
        open_requests = self._desk.open_requests()
        if open_requests and not call.keep:
            raise AtomError(f"{len(open_requests)} requests are open")
        self._empty_the_device(keep_host=call.level == SleepLevel.WEIGHTS_ON_HOST)
        with self._pulse.at_rest():
            self._executor.control(call)
        self._asleep = True

    def wake_up(self, call: WakeUp) -> None:
        with self._pulse.at_rest():  # weights may have to be read
            self._executor.control(call)
        self._asleep = False

    def _empty_the_device(self, *, keep_host: bool = False) -> None:
        """Let requests that run be computed again, and forget all that is cached on the device and,
        unless `keep_host`, in the host's memory."""
        for result in self._pipeline.preempt_all():
            self._publish(result)
        self._desk.void()
        self._scheduler.blocks.reset_prefix_cache(keep_host=keep_host, keep_files=True)
        self._scheduler.loras.forget_all()
        if self._scheduler.images is not None:
            self._scheduler.images.forget_all()
        if self._kv_events is not None:
            self._kv_events.publish()

    def check_weights(self, call: CheckWeights) -> str | None:
        """Return why a checkpoint's weights cannot replace the present ones, or None."""
        try:
            with self._pulse.at_rest():
                self._executor.control(call)
        except ModelError as error:
            return str(error)
        return None

    def update_weights(self, call: UpdateWeights) -> None:
        """Use the weights of another checkpoint from the next step on. Running requests continue:
        their tokens so far are computed again. Every copy of the model passed `check_weights`, so
        an error ends this process, and with it the server: copies must not differ."""
        if self._asleep:
            self._scheduler.blocks.reset_prefix_cache(keep_files=True)
        else:
            self._empty_the_device()
        self._scheduler.tokens.forget_answers()
        try:
            with self._pulse.at_rest():
                self._executor.control(call)
        except Exception as error:
            logger.exception("weights could not be read")
            self._fail(
                f"the weights of {call.path}, which were found sound, could not be taken, and "
                f"those before are gone: {error}",
                user_error=isinstance(error, AtomError),
            )
        if self._scheduler.tiers is not None:
            self._scheduler.tiers.retarget(call.path)

    def check_integrity(self) -> int:
        """Return how many blocks requests hold; an error when the pool's counts do not add up."""
        self._scheduler.blocks.pool.check_integrity()
        return self._scheduler.blocks.pool.num_referenced

    # ---- start-up -----------------------------------------------------------------------------

    def _progress(self, phase: str, share: float) -> None:
        """Report the progress of start-up to the clients, once per percent."""
        percent = int(share * 100)
        if (phase, percent) != self._progress_sent:
            self._progress_sent = (phase, percent)
            self._sockets.send_all(ProgressBody(phase=phase, fraction=share))


# Upstream's name for the core of a data-parallel rank. Every rank runs the same loop here; the
# executor (expert_parallel/executor.py) synchronises ranks that share experts.
DPEngineCoreProc = EngineCore


def _says_anything(result: StepResult) -> bool:
    return bool(len(result.token_ids) or result.finished or result.prompt_logprobs is not None)


def _is_of(client: int, request_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    mine: NDArray[np.bool_] = clients_of(request_ids) == client
    return mine
