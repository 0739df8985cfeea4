"""The server process: bind, open the model, start the engine behind it, serve, and end in order.

    bind ──> HTTP answers (503: starting) ──> model opened ──> engine ready ──> serving
    SIGTERM, SIGINT ──> 503: draining, running requests finish ──> exit 0 (a second signal: at once)
    engine dead ──> open requests get an error ──> exit 1, so that Kubernetes restarts the pod

Effects only; routes are openai/api_server.py, request flow is AsyncLLMEngine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import uvloop

from atom.checkpoint import weights_bytes_on_disk
from atom.config import Config, EngineOptions, build_config
from atom.entrypoints.listener import BACKLOG, listen
from atom.entrypoints.logs import flush_logs
from atom.entrypoints.openai.api_server import build_app
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.startup_table import print_startup_table
from atom.entrypoints.startup_timeline import StartupTimeline
from atom.errors import EngineDeadError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.engine_protocol import EngineReport
from atom.model_engine.input_output_processor import InputOutputProcessor
from atom.model_engine.request_stream import reader_limits
from atom.progress import StartupProgress

logger = logging.getLogger(__name__)

_RESPONSES_FLUSH_SECONDS = 3  # for what is already generated to reach its readers
_ENGINE_END_SECONDS = 10.0
_OPENING_THREAD = "open-model"
_LOADING_ENGINE_END_SECONDS = 0.5  # it has nothing to finish, and may be deep in a load

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the server's own flags say."""

    engine: EngineOptions
    host: str = "0.0.0.0"
    port: int = 8000
    drain_seconds: float = 30.0
    startup_budget_seconds: float | None = None
    chat_template: Path | None = None
    keep_alive_seconds: int = 5
    access_log: bool = True
    request_timeout_seconds: float | None = None
    reader_timeout_seconds: float | None = 60.0
    api_key: str | None = field(default=None, repr=False)


def run_server(options: ServerOptions) -> int:
    """Serve until a signal; the exit code. Raises `AtomError` when it could not start or had to
    stop."""
    listener = listen(
        options.host, options.port, reader_timeout_seconds=options.reader_timeout_seconds or 0.0
    )
    with contextlib.closing(listener), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_Server(options, listener).run())
    if any(thread.name == _OPENING_THREAD for thread in threading.enumerate()):
        # A download cannot be interrupted, and the interpreter would wait for its threads.
        flush_logs()
        os._exit(code)
    return code


class _HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: signals first drain the engine."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server:
    """One run. Signals set events; `run` is the only place that decides what follows."""

    def __init__(self, options: ServerOptions, listener: socket.socket) -> None:
        self._options = options
        self._listener = listener
        self._state = ServerState(timeline=StartupTimeline(options.startup_budget_seconds))
        self._http = _HttpServer(
            uvicorn.Config(
                build_app(self._state, api_key=options.api_key),
                log_config=None,
                access_log=options.access_log,
                http="httptools",
                ws="none",
                lifespan="off",
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=options.keep_alive_seconds,
                timeout_graceful_shutdown=_RESPONSES_FLUSH_SECONDS,
            )
        )
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        self._watch_signals()
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        engine: AsyncLLMEngine | None = None
        report: EngineReport | None = None
        try:
            with StartupProgress() as progress:
                engine = await self._unless_stopped(self._open_engine(progress))
                if engine is not None:
                    report = await self._unless_stopped(engine.wait_ready())
            if engine is not None and report is not None:
                self._state.timeline.ready()
                self._announce(report)
                await self._until_stopped_or_dead(engine, serving)
            return await self._end_in_order(engine)
        finally:
            await self._close(engine, serving)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)

    def _on_signal(self, name: str) -> None:
        if self._stop.is_set():
            logger.warning("%s again: stopping at once", name)
            self._stop_now.set()
            return
        logger.info("%s: shutting down", name)
        self._state.stopping = True
        self._stop.set()

    async def _open_engine(self, progress: StartupProgress) -> AsyncLLMEngine:
        """Open the model on a thread (a download may take long) and start the engine process."""
        options = self._options

        def open_model() -> tuple[Config, InputOutputProcessor]:
            config = build_config(options.engine)
            processor = InputOutputProcessor(config, chat_template_file=options.chat_template)
            return config, processor

        config, processor = await _on_daemon_thread(open_model)
        timeline = self._state.timeline
        timeline.weights_bytes = weights_bytes_on_disk(config.model.path)

        def show(phase: str, share: float) -> None:
            timeline.note(phase, share)
            progress.show(phase, share)

        engine = AsyncLLMEngine(
            config,
            processor,
            on_progress=show,
            request_timeout_seconds=options.request_timeout_seconds,
            reader_limits=reader_limits(options.reader_timeout_seconds),
        )
        await engine.start()
        self._state.engine = engine
        return engine

    def _announce(self, report: EngineReport) -> None:
        host, port = self._listener.getsockname()[:2]
        print_startup_table(report, f"http://{host}:{port}")
        logger.info("ready")

    async def _unless_stopped(self, work: Awaitable[Result]) -> Result | None:
        """What `work` gives, or None when a signal came first."""
        working = asyncio.ensure_future(work)
        await _first_of(working, asyncio.ensure_future(self._stop.wait()))
        if working.done():
            return working.result()
        working.cancel()
        return None

    async def _until_stopped_or_dead(
        self, engine: AsyncLLMEngine, serving: asyncio.Task[None]
    ) -> None:
        died = asyncio.ensure_future(engine.wait_dead())
        await _first_of(died, serving, asyncio.ensure_future(self._stop.wait()))
        if died.done():
            raise EngineDeadError(f"the engine stopped: {died.result()}")
        if serving.done():
            raise RuntimeError("the HTTP server ended by itself")

    async def _end_in_order(self, engine: AsyncLLMEngine | None) -> int:
        """After a signal: let running requests finish, unless a second signal comes."""
        if engine is None or engine.status.report is None:
            return 0
        seconds = self._options.drain_seconds
        logger.info("%d requests are open; waiting up to %g s", engine.open_requests, seconds)
        draining = asyncio.ensure_future(engine.drain(seconds))
        died = asyncio.ensure_future(engine.wait_dead())
        await _first_of(draining, died, asyncio.ensure_future(self._stop_now.wait()))
        if died.done():
            raise EngineDeadError(f"the engine stopped: {died.result()}")
        if draining.done() and draining.result():
            logger.warning("%d requests did not finish in time", draining.result())
        return 1 if self._stop_now.is_set() else 0

    async def _close(self, engine: AsyncLLMEngine | None, serving: asyncio.Task[None]) -> None:
        """Open responses get their end, then the engine process ends."""
        self._http.should_exit = True
        self._http.force_exit = self._stop_now.is_set()
        await _first_of(serving, asyncio.ensure_future(self._stop_now.wait()))
        if engine is not None:
            loading = engine.status.report is None
            seconds = _LOADING_ENGINE_END_SECONDS if loading else _ENGINE_END_SECONDS
            await engine.shutdown(0.0 if self._stop_now.is_set() else seconds)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _on_daemon_thread(work: Callable[[], Result]) -> Result:
    """Like asyncio.to_thread, but neither cancelling it nor ending the loop waits for the work."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if outcome.done():  # cancelled meanwhile
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=_OPENING_THREAD, daemon=True).start()
    return await outcome
