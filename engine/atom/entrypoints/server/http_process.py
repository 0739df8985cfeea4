"""HttpProcess: one HTTP server from its first connection to its exit.

    HTTP answers (503: starting) ──> model opened ──> engine ready ──> serving
    signal ──> 503: draining, running requests finish ──> exit 0 (a second signal: at once)
    a rank or another process is gone ──> the same ──> EngineDeadError
    engine dead ──> open requests get an error ──> EngineDeadError

Effects only; api_server.py holds the routes, AsyncLLMEngine the request flow, and engine_source.py
the sources of the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import uvicorn
from starlette.types import ASGIApp

from atom.checkpoint import weights_bytes_on_disk
from atom.entrypoints.api_server import build_app
from atom.entrypoints.http.body_budget import BodyBudget
from atom.entrypoints.http.client_identity import ClientIdentity
from atom.entrypoints.http.http_protocol import BoundedHttpProtocol
from atom.entrypoints.http.listener import BACKLOG
from atom.entrypoints.http.loadable_paths import LoadableByRequests
from atom.entrypoints.metrics_exchange import ServerNumbers
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.process.process_conduct import (
    spare_the_collector,
    switch_threads_soon,
    yield_cores,
)
from atom.entrypoints.process.stop_requests import StopRequests, first_of
from atom.entrypoints.recording.load_recorder import open_recorder
from atom.entrypoints.responses.store import ResponseStore
from atom.entrypoints.server.engine_source import EngineSource
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.startup_timeline import StartupTimeline
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.entrypoints.stored_batches.service import open_batches, running_batches
from atom.entrypoints.tracing.span_export import SpanExport
from atom.errors import EngineDeadError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.cache_salts import CacheSalts
from atom.model_engine.front.loras.followed_loras import FollowedLoras
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.progress import StartupProgress

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_RESPONSES_FLUSH_SECONDS = 3  # for generated output to reach its readers
_ENGINE_END_SECONDS = 10.0
_HAND_OVER_AGAIN_SECONDS = 1.0
_LOADING_ADAPTERS = "loading adapters"
_NOT_SHARED = "the processes of --api-server-count above 1 share no store"
_LOADING_ENGINE_END_SECONDS = 0.5  # it has nothing to finish, and may be deep in a load


def _waits_for(alone: bool) -> str:
    return "" if alone else "waiting for the other API servers"


class HttpServer(uvicorn.Server):
    """Run uvicorn without its signal handling (signals first drain the engine), and with one tick a
    second, for the Date header, instead of ten: that is most of an idle server's cost."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        """Serve an app; only the options about connections are used."""
        super().__init__(
            uvicorn.Config(
                app,
                **(options.listen.tls.uvicorn_settings() if options.listen.tls is not None else {}),
                log_config=None,
                access_log=options.listen.access_log,
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                # Otherwise any sender on this machine could forge its address.
                proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=options.listen.keep_alive_seconds,
                timeout_graceful_shutdown=_RESPONSES_FLUSH_SECONDS,
            )
        )
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._ending.wait()

    def end(self, *, at_once: bool) -> None:
        """End the server; `at_once` without waiting for open responses."""
        self.should_exit = True
        self.force_exit = at_once
        self._ending.set()


class HttpProcess:
    """Run one server. Signals set events; `run` alone decides what follows."""

    def __init__(
        self,
        options: ServerOptions,
        listener: socket.socket,
        source: EngineSource,
        *,
        stop_signals: Sequence[signal.Signals] = (),
        announce: Callable[[EngineReport, Offer], None],
        alone: bool = True,
    ) -> None:
        """announce: called once requests are taken. stop_signals: those that `stop` is called by.
        alone: False if another process speaks for the server: then nothing is shown on a terminal,
        and /health waits for `all_ready`."""
        self._options = options
        self._listener = listener
        self._source = source
        self._announce = announce
        self._alone = alone
        endpoint = options.observe.otlp_traces_endpoint
        self._spans = None if endpoint is None else SpanExport(endpoint)
        self._state = ServerState(
            timeline=StartupTimeline(options.startup_budget_seconds),
            created=options.created or int(time.time()),
            waits_for=_LOADING_ADAPTERS if options.lora_modules_file else _waits_for(alone),
            bodies=BodyBudget(options.limits.body_memory_bytes),
            names=options.served_names,
            refuses_late=bool(options.peers.worker_urls),
            clients=ClientIdentity(
                header=options.clients.fairness_header, num_keys=options.clients.num_keys
            ),
            loadable=LoadableByRequests.of(options.access, options.engine.checkpoint.model),
        )
        self._keys = options.keys()
        self._batches = open_batches(options.limits.batches)
        self._recorder = open_recorder(options.observe.record)
        self._http = HttpServer(
            build_app(
                self._state,
                keys=self._keys,
                allowed_origins=options.listen.allowed_origins,
                root_path=options.listen.root_path,
                responses=ResponseStore(
                    options.limits.responses_store_bytes, "" if alone else _NOT_SHARED
                ),
                console=options.listen.console,
                mcp_hosts=options.listen.mcp_hosts,
                shows_tokenizer=options.listen.shows_tokenizer,
                batches=self._batches,
                tracer=None if self._spans is None else self._spans.tracer,
                recorder=self._recorder,
            ),
            options,
        )
        self._stopping = StopRequests(stop_signals, self._on_stop)

    def _on_stop(self) -> None:
        self._state.stopping = True

    def stop(self) -> None:
        """Drain and end; at once when it is called again."""
        self._stopping.ask()

    def all_ready(self) -> None:
        """Record that the other processes on this port take requests too."""
        self._state.waits_for = ""

    def server_lost(self, reason: str) -> None:
        """Note that another HTTP process on this port has ended."""
        if self._state.engine is not None:
            self._state.engine.maim(reason)

    async def run(self) -> int:
        """Run the server and return the exit code. Raises `AtomError` if it could not start or had
        to stop."""
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        unless_stopped = self._stopping.unless_stopped
        engine: AsyncLLMEngine | None = None
        report: EngineReport | None = None
        try:
            with StartupProgress() as bars:
                show = bars.show if self._alone else None
                engine = await unless_stopped(self._open_engine(show))
                if engine is not None:
                    report = await unless_stopped(engine.wait_ready())
                if engine is not None and report is not None:
                    await unless_stopped(self._load_adapters(engine))
            if engine is not None and report is not None:
                spare_the_collector()
                switch_threads_soon()
                if report.on_cpu:
                    yield_cores()
                self._state.timeline.ready()
                self._announce(report, self._state.offer(engine))
                async with running_batches(self._batches):
                    await self._until_stopped_or_dead(engine, serving)
            return await self._end_in_order(engine)
        finally:
            await self._close(engine, serving)

    def _own_numbers(self) -> ServerNumbers:
        numbers = self._state.own_numbers()
        requests = {} if self._batches is None else dict(self._batches.worker.requests)
        return msgspec.structs.replace(numbers, batch_requests=requests)

    async def _load_adapters(self, engine: AsyncLLMEngine) -> None:
        """Load the adapters of --lora-modules-file before the server is ready."""
        file = self._options.lora_modules_file
        if file is None:
            return
        names = self._state.served_names(engine)
        self._state.followed_loras = FollowedLoras(file, engine.lora_changes, names)
        await self._state.followed_loras.turn()
        self._state.waits_for = ""

    async def _open_engine(self, show: Callable[[str, float], None] | None) -> AsyncLLMEngine:
        timeline = self._state.timeline

        def note(phase: str, share: float) -> None:
            timeline.note(phase, share)
            if show is not None:
                show(phase, share)

        def expect(size_bytes: int) -> None:
            timeline.weights_bytes = size_bytes

        engine = await self._source.open(note, expect)
        timeline.weights_bytes = weights_bytes_on_disk(engine.config.model.path)
        if not self._options.access.shares_cache:
            engine.cache_salts = CacheSalts(lambda: self._keys.users.count > 1)
        await engine.start()
        self._state.engine = engine
        self._state.exchange = self._source.exchange(self._own_numbers)
        if self._state.exchange is not None:
            await self._state.exchange.start()
        return engine

    async def _until_stopped_or_dead(
        self, engine: AsyncLLMEngine, serving: asyncio.Task[None]
    ) -> None:
        died = asyncio.ensure_future(engine.wait_dead())
        maimed = asyncio.ensure_future(engine.wait_maimed())
        stopped = asyncio.ensure_future(self._stopping.stop.wait())
        followed = self._state.followed_loras
        following = None if followed is None else asyncio.create_task(followed.follow())
        await first_of(died, maimed, serving, stopped)
        if following is not None:
            following.cancel()
        if died.done():
            await self._relay_rest(engine)
            raise EngineDeadError(f"the engine stopped: {died.result()}")
        if maimed.done():
            await self._drain(engine)
            raise EngineDeadError(maimed.result())
        if serving.done():
            raise RuntimeError("the HTTP server ended by itself")

    async def _end_in_order(self, engine: AsyncLLMEngine | None) -> int:
        """Let running requests finish after a signal, unless a second signal comes."""
        if engine is None or engine.status.report is None:
            return 0
        await self._drain(engine)
        return 1 if self._stopping.stop_now.is_set() else 0

    async def _drain(self, engine: AsyncLLMEngine) -> None:
        """Let running requests finish. Raises `EngineDeadError` when the engine dies meanwhile."""
        seconds = self._options.drain_seconds
        logger.info("%d requests are open; waiting up to %g s", engine.open_requests, seconds)
        stop_now = self._stopping.stop_now
        draining = asyncio.ensure_future(engine.drain(seconds))
        handing = asyncio.ensure_future(self._hand_over(engine))
        died = asyncio.ensure_future(engine.wait_dead())
        await first_of(draining, died, asyncio.ensure_future(stop_now.wait()))
        handing.cancel()
        if died.done():
            await self._relay_rest(engine)
            raise EngineDeadError(f"the engine stopped: {died.result()}")
        if draining.done() and draining.result():
            logger.warning("%d requests did not finish in time", draining.result())

    async def _hand_over(self, engine: AsyncLLMEngine) -> None:
        """Let other replicas continue the open answers, as soon as there are any; the device is
        free once they do."""
        if self._options.peers.handover_url is None:
            return
        while not await engine.hand_over():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HAND_OVER_AGAIN_SECONDS):
                    await self._stopping.stop_now.wait()
        await engine.end_core(_ENGINE_END_SECONDS)

    async def _relay_rest(self, engine: AsyncLLMEngine) -> None:
        """Wait for answers that continue on other replicas, since the engine here is dead."""
        idle = asyncio.ensure_future(engine.wait_idle(self._options.drain_seconds))
        await first_of(idle, asyncio.ensure_future(self._stopping.stop_now.wait()))

    async def _close(self, engine: AsyncLLMEngine | None, serving: asyncio.Task[None]) -> None:
        """End the engine process, then the open responses: the port answers as long as there is
        anything to wait for."""
        stop_now = self._stopping.stop_now
        at_once = asyncio.ensure_future(stop_now.wait())
        if engine is not None and not stop_now.is_set():
            loading = engine.status.report is None
            seconds = _LOADING_ENGINE_END_SECONDS if loading else _ENGINE_END_SECONDS
            await first_of(asyncio.ensure_future(engine.shutdown(seconds)), at_once)
        self._http.end(at_once=stop_now.is_set())
        await first_of(serving, at_once)
        self._state.turns.close()
        if self._state.exchange is not None:
            self._state.exchange.stop()
        if engine is not None:
            await engine.shutdown(0.0)
        if self._batches is not None:
            self._batches.close()
        if self._recorder is not None:
            self._recorder.close()
        if self._spans is not None:
            await first_of(asyncio.ensure_future(self._spans.close()), at_once)
