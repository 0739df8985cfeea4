"""ApiFleet: several HTTP processes on one port, and the engine that they share.

This process opens the model, owns the engine processes as their client 0 and the HTTP processes as
clients 1 to M, and serves nothing itself. The rules are those of the one-process server: a signal
drains all; if one of several ranks or HTTP processes dies, the others finish their open requests;
if the engine dies, open requests get an error. In both cases the exit code is 1, so that Kubernetes
restarts the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from atom.config import Config
from atom.entrypoints.process.stop_requests import StopRequests, first_of, on_daemon_thread
from atom.entrypoints.server.engine_source import OPENING_THREAD, open_model
from atom.entrypoints.server.owner_messages import (
    LISTENS,
    READY,
    AllReady,
    EngineFailed,
    ModelOpened,
    OwnerMessage,
    RankLost,
    ServerLost,
    Stop,
    to_line,
)
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.supported_endpoints import Offer, supported_endpoints
from atom.errors import EngineDeadError
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.wire.core_port import CoreEvent, CoreFailed, CoreLost
from atom.model_engine.wire.engine_protocol import EngineReport, ProgressBody
from atom.model_engine.wire.other_nodes import ClientPorts
from atom.progress import StartupProgress
from atom.utils.child_process import ChildProcess, Command

logger = logging.getLogger(__name__)

_PROCESS_MODULE = "atom.entrypoints.server.api_process"
_FAILED_END_SECONDS = 5.0  # for open responses to get their error
_STARTING_END_SECONDS = 1.0  # they have nothing to finish, and may still be importing
_END_MARGIN_SECONDS = 10.0  # beyond the drain, for responses to reach their readers
_ENGINE_END_SECONDS = 10.0
_ENGINE_END_AT_ONCE_SECONDS = 0.5
_ENGINE_STOPPED = "the engine stopped: "

Result = TypeVar("Result")


class ApiFleet:
    """Run one fleet; belongs to the running loop."""

    def __init__(
        self,
        options: ServerOptions,
        listeners: Sequence[socket.socket],
        stop_signals: Sequence[signal.Signals],
        announce: Callable[[EngineReport, Offer], None],
    ) -> None:
        """listeners: one for each HTTP process, on the same port."""
        # The model's time in the API, the same whichever process answers.
        self._options = dataclasses.replace(options, created=int(time.time()))
        self._listeners = listeners
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._stopping = StopRequests(stop_signals, lambda: None)
        self._progress: StartupProgress | None = None
        self._offer: Offer | None = None
        self._report: asyncio.Future[EngineReport] = self._loop.create_future()
        self._failed: asyncio.Future[str] = self._loop.create_future()
        self._manager: CoreManager | None = None
        self._terminating = False  # the HTTP processes were asked to end
        self._lost: asyncio.Future[str] = self._loop.create_future()  # they end by themselves
        self._running = len(listeners)
        self._all_ended = asyncio.Event()
        self._starting = len(listeners)
        self._all_ready = asyncio.Event()  # the engine, and every HTTP process
        self._servers = [
            self._server(number, listener) for number, listener in enumerate(listeners, start=1)
        ]

    def _server(self, number: int, listener: socket.socket) -> ChildProcess:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
        descriptor = listener.fileno()
        arguments = [sys.executable, "-m", _PROCESS_MODULE, str(number), str(descriptor), level]
        return ChildProcess(
            f"API server process {number}",
            Command(arguments, pass_fds=[descriptor]),
            self._on_server_exit,
            on_line=lambda word: self._on_server_word(number, word),
        )

    async def run(self) -> int:
        """Run the fleet and return the exit code. Raises `AtomError` if it could not start or had
        to stop."""
        try:
            self._start_servers()
            with StartupProgress() as self._progress:
                config = await self._unless_ended(self._open_model())
                if config is not None:
                    self._start_engine(config)
                    await self._unless_ended(self._all_ready.wait())
            if self._all_ready.is_set():
                self._tell(AllReady())
                assert self._offer is not None, "the model is open"
                self._announce(self._report.result(), self._offer)
                await self._unless_ended(asyncio.shield(self._lost))
                if self._lost.done():
                    await self._end_without(self._lost.result())
            return await self._end_in_order()
        finally:
            await self._close()

    async def _unless_ended(self, work: Awaitable[Result]) -> Result | None:
        """Return the result of `work`; None if a signal came first. Raises if a child ended
        first."""
        return await self._stopping.unless_stopped(self._unless_failed(work))

    async def _unless_failed(self, work: Awaitable[Result]) -> Result:
        working = asyncio.ensure_future(work)
        try:
            await first_of(working, self._failed)
            if self._failed.done():
                self._raise_failure()
            return working.result()
        finally:
            working.cancel()

    def _raise_failure(self) -> NoReturn:
        raise EngineDeadError(self._failed.result())

    # ---- start-up -----------------------------------------------------------------------------

    def _start_servers(self) -> None:
        for server in self._servers:
            server.start()
            server.tell(self._options.to_json())
        for listener in self._listeners:
            listener.close()  # a connection that no process accepts is to be refused

    async def _open_model(self) -> Config:
        """Open the model; the processor is made only to report its faults and its endpoints here,
        once."""
        config, processor = await on_daemon_thread(
            lambda: open_model(self._options), name=OPENING_THREAD
        )
        has_template = processor.has_chat_template
        endpoints = supported_endpoints(config.model, has_template=has_template)
        self._offer = Offer(config.model.served_name, endpoints)
        return config

    def _start_engine(self, config: Config) -> None:
        self._manager = CoreManager(config, self._on_event, clients=len(self._servers) + 1)
        folder = str(self._manager.address.folder)
        self._tell(ModelOpened(config=msgspec.Raw(config.to_json()), folder=folder))
        self._manager.start()

    def _tell(self, message: OwnerMessage) -> None:
        line = to_line(message)
        for server in self._servers:
            server.tell(line)

    # ---- events -------------------------------------------------------------------------------

    def _on_event(self, event: CoreEvent) -> None:
        """Pass an event from the manager's thread to the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, with no waiter left
            self._loop.call_soon_threadsafe(self._handle, event)

    def _handle(self, event: CoreEvent) -> None:
        if isinstance(event, EngineReport):
            self._report.set_result(event)
            self._note_ready()
        elif isinstance(event, CoreLost):
            self._lose(event.message, RankLost(rank=event.rank, message=event.message))
        elif isinstance(event, CoreFailed):
            started = self._report.done()
            self._fail(f"{_ENGINE_STOPPED}{event.message}" if started else event.message)
        elif isinstance(event, ProgressBody) and self._progress is not None:
            self._progress.show(event.phase, event.fraction)

    def _on_server_word(self, number: int, word: bytes) -> None:
        """Handle a child's message, on the child's thread."""
        if word.startswith(LISTENS) and self._manager is not None:
            ports = msgspec.json.decode(word.removeprefix(LISTENS), type=ClientPorts)
            self._manager.client_listens(number, ports)
        if word == READY:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._server_ready)

    def _server_ready(self) -> None:
        self._starting -= 1
        self._note_ready()

    def _note_ready(self) -> None:
        if self._report.done() and not self._starting:
            self._all_ready.set()

    def _on_server_exit(self, server: ChildProcess) -> None:
        """Pass a child's end from its thread to the loop."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._server_ended, server)

    def _server_ended(self, server: ChildProcess) -> None:
        self._running -= 1
        if self._running == 0:
            self._all_ended.set()
        if self._lost.done() and server.returncode == 1:
            return  # as it was asked to
        if self._terminating and server.returncode in (0, 1):
            return
        if self._all_ready.is_set() and self._running and self._manager is not None:
            self._manager.abort_client(1 + self._servers.index(server))
            self._lose(server.last_words, ServerLost(message=server.last_words))
        else:
            self._fail(server.last_words)

    def _lose(self, reason: str, message: RankLost | ServerLost) -> None:
        """Let the HTTP processes finish their open requests, and end."""
        self._tell(message)
        if not self._lost.done():
            self._lost.set_result(reason)

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_result(reason)
            self._tell(EngineFailed(message=reason.removeprefix(_ENGINE_STOPPED)))

    # ---- the end ------------------------------------------------------------------------------

    def _terminate(self) -> None:
        self._terminating = True
        self._tell(Stop())

    async def _end_without(self, reason: str) -> NoReturn:
        """End after a loss that others survive: each HTTP process finishes its requests, unless a
        signal comes for the second time."""
        logger.error("%s; open answers are finished, and then the server ends", reason)
        await first_of(
            asyncio.ensure_future(self._all_ended.wait()),
            asyncio.ensure_future(self._stopping.stop_now.wait()),
            asyncio.ensure_future(asyncio.sleep(self._options.drain_seconds + _END_MARGIN_SECONDS)),
            self._failed,
        )
        raise EngineDeadError(reason)

    async def _end_in_order(self) -> int:
        """End after a signal: each HTTP process finishes its requests, unless a second signal
        comes."""
        self._terminate()
        stop_now = asyncio.ensure_future(self._stopping.stop_now.wait())
        ended = asyncio.ensure_future(self._all_ended.wait())
        late = asyncio.ensure_future(
            asyncio.sleep(self._options.drain_seconds + _END_MARGIN_SECONDS)
        )
        await first_of(ended, stop_now, late, self._failed)
        if self._failed.done():
            self._raise_failure()
        if stop_now.done():
            self._terminate()  # for the second time: at once
        return max(1 if server.returncode != 0 else 0 for server in self._servers)

    async def _close(self) -> None:
        """End all processes; none is left after this."""
        if not (self._terminating or self._failed.done()):
            self._terminate()
        served = self._all_ready.is_set()
        with contextlib.suppress(TimeoutError):
            seconds = _FAILED_END_SECONDS if served else _STARTING_END_SECONDS
            async with asyncio.timeout(seconds):
                await self._all_ended.wait()
        for server in self._servers:
            if server.returncode is None:
                if served:
                    logger.warning("%s did not end in time; killing it", server.name)
                server.kill()
        if self._manager is not None:
            now = self._stopping.stop_now.is_set() or not self._report.done()
            await asyncio.to_thread(
                self._manager.shutdown, _ENGINE_END_AT_ONCE_SECONDS if now else _ENGINE_END_SECONDS
            )
