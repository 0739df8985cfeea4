"""ModelsProcess: an HTTP server of several models, from its first connection to its exit.

    HTTP answers (503: starting) ──> models start, one after the other ──> serving
    signal ──> 503: draining, running requests finish ──> exit 0 (a second signal: at once)
    one engine dead ──> open requests of the others finish ──> EngineDeadError

Effects only. Each model has all parts of a server of one: options, ServerState, routes and an
engine with its processes; ModelTurns decides which of them is awake.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from atom.config_values import SleepLevel
from atom.entrypoints.api_server import Layers, add_error_handlers, add_model_routes, build_routes
from atom.entrypoints.http.access import AccessKeys
from atom.entrypoints.http.body_budget import BodyBudget
from atom.entrypoints.http.body_turns import BodyTurns
from atom.entrypoints.http.client_identity import ClientIdentity
from atom.entrypoints.http.loadable_paths import LoadableByRequests
from atom.entrypoints.ollama.routes import ollama_list_routes
from atom.entrypoints.openai.server_names import ServerNames
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.process.stop_requests import StopRequests, first_of
from atom.entrypoints.responses.store import ResponseStore
from atom.entrypoints.server.engine_source import OwnEngine
from atom.entrypoints.server.http_process import HttpServer
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.startup_timeline import StartupTimeline
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.entrypoints.stored_batches.service import open_batches, running_batches
from atom.entrypoints.swap.model_router import ModelRouter, RoutedModel
from atom.entrypoints.swap.model_turns import HoldLimits, ModelTurns
from atom.entrypoints.swap.models_metrics import models_metrics_routes
from atom.entrypoints.swap.shared_device import SharedDevice, Sharing, SharingModel
from atom.entrypoints.swap.swap_policy import ROUNDING
from atom.entrypoints.tracing.span_export import SpanExport
from atom.errors import EngineDeadError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.cache_salts import CacheSalts
from atom.model_engine.wire.engine_protocol import EngineReport

logger = logging.getLogger(__name__)

_ENGINE_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its part of the server's options. sharing: as the device's memory is shared."""

    sharing: SharingModel
    options: ServerOptions


class ModelsProcess:
    """Run one server of several models. Signals set events; `run` alone decides what follows."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        sharing: Sharing,
        listener: socket.socket,
        *,
        stop_signals: Sequence[signal.Signals] = (),
        announce: Callable[[Sequence[tuple[EngineReport, Offer]]], None],
    ) -> None:
        """announce: called once requests are taken."""
        self._models = models
        self._listener = listener
        self._announce = announce
        options = models[0].options  # options of the whole server are equal in all
        self._timeline = StartupTimeline(options.startup_budget_seconds)
        shared: dict[str, Any] = {
            "created": int(time.time()),
            "timeline": self._timeline,
            "bodies": BodyBudget(options.limits.body_memory_bytes),
            "turns": BodyTurns(),
            "server_names": ServerNames(),
            "clients": ClientIdentity(
                header=options.clients.fairness_header, num_keys=options.clients.num_keys
            ),
        }
        self._states = {
            each.sharing.name: ServerState(
                names=each.options.served_names,
                loadable=LoadableByRequests.of(
                    each.options.access, each.options.engine.checkpoint.model
                ),
                **shared,
            )
            for each in models
        }
        for state in self._states.values():
            state.server_names.add(state.all_names)
        endpoint = options.observe.otlp_traces_endpoint
        self._spans = None if endpoint is None else SpanExport(endpoint)
        self._capacity = sharing.capacity
        self._device = SharedDevice([each.sharing for each in models], sharing)
        keys = self._keys = options.keys()
        self._batches = open_batches(options.limits.batches)
        self._router = self._build_router(options, keys.any_key)
        if self._batches is not None:
            inside = Layers(AccessKeys()).around(self._router, lambda: self._stopping.stop.is_set())
            self._batches.serve_through(inside, lambda: self._router.is_ready)
        layers = Layers(keys, options.listen.allowed_origins, options.listen.root_path)
        self._stopping = StopRequests(stop_signals, self._on_stop)
        app = layers.around(self._router, lambda: self._stopping.stop.is_set())
        self._http = HttpServer(app, options)

    def _build_router(self, options: ServerOptions, needs_key: bool) -> ModelRouter:
        stored = ResponseStore(options.limits.responses_store_bytes)
        whole = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        states = list(self._states.values())
        add_model_routes(whole, states)
        whole.include_router(ollama_list_routes(states))
        whole.include_router(
            models_metrics_routes(
                self._states, self._device, lambda: self._router.is_ready, self._batches
            )
        )
        add_error_handlers(whole)
        routed = [
            RoutedModel(
                name,
                state,
                build_routes(
                    state,
                    needs_key=needs_key,
                    root_path=options.listen.root_path,
                    responses=stored,
                    console=options.listen.console,
                    mcp_hosts=options.listen.mcp_hosts,
                    shows_tokenizer=options.listen.shows_tokenizer,
                    batches=self._batches,
                    tracer=None if self._spans is None else self._spans.tracer,
                ),
            )
            for name, state in self._states.items()
        ]
        return ModelRouter(routed, whole, self._timeline)

    def _on_stop(self) -> None:
        for state in self._states.values():
            state.stopping = True

    def stop(self) -> None:
        """Drain and end; at once when it is called again."""
        self._stopping.ask()

    async def run(self) -> int:
        """Run the server and return the exit code. Raises `AtomError` if it could not start or had
        to stop."""
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        try:
            started = await self._stopping.unless_stopped(self._start())
            if started is not None:
                self._timeline.ready()
                self._announce(started)
                async with running_batches(self._batches):
                    await self._until_stopped_or_dead(serving)
                await self._drain()
            return 1 if self._stopping.stop_now.is_set() else 0
        finally:
            await self._close(serving)

    async def _start(self) -> list[tuple[EngineReport, Offer]]:
        """Start the models one after the other, each with room for the next."""
        started = []
        first = sorted(self._models, key=lambda each: not each.sharing.pinned)
        for index, model in enumerate(first):
            name = model.sharing.name
            engine = await self._open(model)
            report = await engine.wait_ready()
            started.append((report, self._states[name].offer(engine)))
            self._device.set_awake(name, time.monotonic())
            next_share = max((each.sharing.share for each in first[index + 1 :]), default=0.0)
            left = self._capacity - self._device.awake_share
            if next_share > left + ROUNDING and not model.sharing.pinned:
                await engine.sleep(SleepLevel.WEIGHTS_ON_HOST)
                self._device.set_asleep(name)
            logger.info("%s has started", name)
        options = self._models[0].options
        most = options.engine.scheduler.max_waiting_requests
        limits = HoldLimits(most, options.limits.request_timeout_seconds)
        engines = {name: self._engine(name) for name in self._states}
        self._router.turns = ModelTurns(self._device, engines, limits)
        return started

    async def _open(self, model: ServedModel) -> AsyncLLMEngine:
        state = self._states[model.sharing.name]
        engine = await OwnEngine(model.options).open(self._timeline.note, self._expect)
        if not model.options.access.shares_cache:
            engine.cache_salts = CacheSalts(lambda: self._keys.users.count > 1)
        await engine.start()
        state.engine = engine
        return engine

    def _expect(self, size_bytes: int) -> None:
        self._timeline.weights_bytes = size_bytes

    def _engine(self, name: str) -> AsyncLLMEngine:
        engine = self._states[name].engine
        assert engine is not None, "all have started"
        return engine

    def _engines(self) -> list[AsyncLLMEngine]:
        """List the engines that have been started so far."""
        return [state.engine for state in self._states.values() if state.engine is not None]

    async def _until_stopped_or_dead(self, serving: asyncio.Task[None]) -> None:
        stopped = asyncio.ensure_future(self._stopping.stop.wait())
        ends: dict[asyncio.Future[Any], str] = {}
        for name in self._states:
            for wait in (self._engine(name).wait_dead, self._engine(name).wait_maimed):
                ends[asyncio.ensure_future(wait())] = name
        await first_of(serving, stopped, *ends)
        for future, name in ends.items():
            if future.done():
                await self._drain()
                raise EngineDeadError(f"the engine of {name} stopped: {future.result()}")
            future.cancel()
        if serving.done():
            raise RuntimeError("the HTTP server ended by itself")

    async def _drain(self) -> None:
        """Let running requests finish, unless a second signal comes. Those that are held for a
        model that sleeps are refused."""
        seconds = self._models[0].options.drain_seconds
        draining = asyncio.gather(*(engine.drain(seconds) for engine in self._engines()))
        await first_of(
            asyncio.ensure_future(draining), asyncio.ensure_future(self._stopping.stop_now.wait())
        )

    async def _close(self, serving: asyncio.Task[None]) -> None:
        """End the engine processes, then the open responses."""
        stop_now = self._stopping.stop_now
        at_once = asyncio.ensure_future(stop_now.wait())
        if not stop_now.is_set():
            await first_of(self._all(_ENGINE_END_SECONDS), at_once)
        self._http.end(at_once=stop_now.is_set())
        await first_of(serving, at_once)
        for state in self._states.values():
            state.turns.close()
        await self._all(0.0)
        if self._batches is not None:
            self._batches.close()
        if self._spans is not None:
            await first_of(asyncio.ensure_future(self._spans.close()), at_once)

    def _all(self, seconds: float) -> asyncio.Future[Any]:
        ends: list[Coroutine[Any, Any, None]] = [each.shutdown(seconds) for each in self._engines()]
        return asyncio.ensure_future(asyncio.gather(*ends))
