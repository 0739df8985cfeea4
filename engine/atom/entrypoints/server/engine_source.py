"""Sources of an HTTP process's engine: its own, a shared one, or workers.

OwnEngine is the server of one process; WorkersEngine has no engine and lets other servers compute;
AttachedEngine is one of several HTTP processes (api_process.py), whose owner (api_fleet.py) opens
the model and starts the engine processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from atom.config import Config, build_config
from atom.entrypoints.metrics_exchange import MetricsExchange, ServerNumbers
from atom.entrypoints.process.stop_requests import on_daemon_thread
from atom.entrypoints.server.owner_messages import ModelOpened
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.hub_progress import follow_download
from atom.errors import ConfigError, EngineDeadError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.front.handover.relays import Replicas
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.request_stream import reader_limits
from atom.model_engine.wire.core_port import CoreEvent
from atom.model_engine.wire.core_sockets import ClientAddress
from atom.model_engine.wire.other_nodes import ClientPorts
from atom.utils.host_memory import host_memory_bytes

if TYPE_CHECKING:
    from atom.entrypoints.handover.replica_session import ReplicaSessions

logger = logging.getLogger(__name__)

OPENING_THREAD = "open-model"

ShowProgress = Callable[[str, float], None]


class EngineSource(Protocol):
    async def open(self, show: ShowProgress, expect: Callable[[int], None]) -> AsyncLLMEngine:
        """Return an engine that has not been started. show: called with its progress; expect: with
        the bytes of a download. Raises `AtomError`."""

    def exchange(self, numbers: Callable[[], ServerNumbers]) -> MetricsExchange | None:
        """Open the exchange with the HTTP processes that share the opened engine; None when it is
        not shared."""


def open_model(options: ServerOptions) -> tuple[Config, InputOutputProcessor]:
    """Open the model, and check everything that can be checked before a device is touched. Raises
    `AtomError`."""
    config = build_config(options.engine, weights=not options.peers.worker_urls)
    processor = _processor_of(config, options)
    processor.warn_of_misfits()
    logger.info("answers of chats: %s", processor.answer_formats)
    return config, processor


def _processor_of(config: Config, options: ServerOptions) -> InputOutputProcessor:
    return InputOutputProcessor(
        config,
        chat_template_file=options.chat.chat_template,
        tool_call_parser=options.chat.tool_call_parser,
        reasoning_parser=options.chat.reasoning_parser,
        template_kwargs=options.chat.template_kwargs,
        media=options.chat.media,
        image_memory_bytes=_image_memory_bytes(options),
    )


def _image_memory_bytes(options: ServerOptions) -> int:
    """Return the share of each HTTP process in the memory for images."""
    whole = options.engine.images.memory_bytes(host_memory_bytes())
    return whole // options.listen.api_servers


class OwnEngine:
    def __init__(self, options: ServerOptions) -> None:
        self._options = options

    async def open(self, show: ShowProgress, expect: Callable[[int], None]) -> AsyncLLMEngine:
        config, processor = await _opened(self._options, show, expect)
        return AsyncLLMEngine(
            config,
            processor,
            on_progress=show,
            request_timeout_seconds=self._options.limits.request_timeout_seconds,
            reader_limits=reader_limits(self._options.limits.reader_timeout_seconds),
            replicas=_replicas(self._options),
        )

    def exchange(self, numbers: Callable[[], ServerNumbers]) -> MetricsExchange | None:
        return None


async def _opened(
    options: ServerOptions, show: ShowProgress, expect: Callable[[int], None]
) -> tuple[Config, InputOutputProcessor]:
    """Open the model on a thread: a download of weights may take long, and is followed."""
    if options.peers.worker_urls:
        return await on_daemon_thread(lambda: open_model(options), name=OPENING_THREAD)
    asked = options.engine.checkpoint
    following = asyncio.create_task(follow_download(asked.model, asked.revision, show, expect))
    try:
        return await on_daemon_thread(lambda: open_model(options), name=OPENING_THREAD)
    finally:
        following.cancel()


def _replicas(options: ServerOptions) -> Replicas | None:
    """Build the way to other replicas of the model."""
    if options.peers.handover_url is None:
        return None
    from atom.entrypoints.handover.http_replicas import HttpReplicas  # loads an HTTP client

    return HttpReplicas.behind(options.peers.handover_url, _sessions(options))


def _sessions(options: ServerOptions) -> ReplicaSessions:
    """Create sessions with replicas, with this server's own secret and certificate."""
    from atom.entrypoints.handover.replica_session import ReplicaSessions

    certificate = None if options.listen.tls is None else options.listen.tls.certfile
    return ReplicaSessions(options.access.followed_secrets().current, certificate)


class WorkersEngine:
    """Serve without an engine: --worker-urls name the servers that compute. They bound how many
    requests may wait."""

    def __init__(self, options: ServerOptions) -> None:
        engine = options.engine
        unbounded = dataclasses.replace(engine.scheduler, max_waiting_requests=0)
        engine = dataclasses.replace(engine, scheduler=unbounded)
        self._options = dataclasses.replace(options, engine=engine)

    async def open(self, show: ShowProgress, expect: Callable[[int], None]) -> AsyncLLMEngine:
        """Open the model's text side, and connect to the workers. Raises `ConfigError` for a
        pooling model."""
        from atom.entrypoints.handover.http_workers import HttpWorkers
        from atom.model_engine.front.handover.worker_core import WorkerCore

        options = self._options
        config, processor = await _opened(options, show, expect)
        if config.model.pooling is not None:
            raise ConfigError(
                "--worker-urls: vectors and scores are not computed by workers; let clients ask "
                "the servers of a pooling model themselves"
            )
        workers = HttpWorkers(
            options.peers.worker_urls,
            _sessions(options),
            config.model.architecture,
            options.peers.prefill_least_tokens,
        )
        return AsyncLLMEngine(
            config,
            processor,
            core_factory=lambda _, on_event: WorkerCore(workers, on_event),
            on_progress=show,
            request_timeout_seconds=options.limits.request_timeout_seconds,
            reader_limits=reader_limits(options.limits.reader_timeout_seconds),
        )

    def exchange(self, numbers: Callable[[], ServerNumbers]) -> MetricsExchange | None:
        return None


class AttachedEngine:
    """An engine whose processes belong to another process of this server. Belongs to the running
    loop."""

    def __init__(
        self, options: ServerOptions, client: int, say_ports: Callable[[ClientPorts], None]
    ) -> None:
        """client: this process' number among the engine's clients; from 1. say_ports: called with
        the ports on which it listens to engine processes of other nodes, if there are any."""
        self._options = options
        self._client = client
        self._say_ports = say_ports
        self._opened: asyncio.Future[ModelOpened] = asyncio.get_running_loop().create_future()
        self._manager: CoreManager | None = None

    def model_opened(self, message: ModelOpened) -> None:
        self._opened.set_result(message)

    def engine_failed(self, reason: str) -> None:
        if self._manager is not None:
            self._manager.fail(reason)
        elif not self._opened.done():
            self._opened.set_exception(EngineDeadError(reason))

    def rank_lost(self, rank: int, message: str) -> None:
        """Record that the owner has seen the end of an engine process."""
        if self._manager is not None:
            self._manager.lose_rank(rank, message)

    async def open(self, show: ShowProgress, expect: Callable[[int], None]) -> AsyncLLMEngine:
        opened = await self._opened
        config = _with_its_share(
            Config.from_json(bytes(opened.config)), self._options.listen.api_servers
        )
        address = ClientAddress(Path(opened.folder), self._client)
        processor = await asyncio.to_thread(_processor_of, config, self._options)

        def attach(config: Config, on_event: Callable[[CoreEvent], None]) -> CoreManager:
            self._manager = CoreManager(config, on_event, attachment=address)
            if self._manager.ports is not None:
                self._say_ports(self._manager.ports)
            return self._manager

        return AsyncLLMEngine(
            config,
            processor,
            core_factory=attach,
            client=self._client,
            on_progress=show,
            request_timeout_seconds=self._options.limits.request_timeout_seconds,
            reader_limits=reader_limits(self._options.limits.reader_timeout_seconds),
        )

    def exchange(self, numbers: Callable[[], ServerNumbers]) -> MetricsExchange | None:
        folder = Path(self._opened.result().folder)
        paths = {
            client: ClientAddress(folder, client).metrics
            for client in range(1, self._options.listen.api_servers + 1)
        }
        return MetricsExchange(paths.pop(self._client), list(paths.values()), numbers)


def _with_its_share(config: Config, api_servers: int) -> Config:
    """Divide the bound of waiting requests among the HTTP processes, approximately."""
    bound = config.scheduler.max_waiting_requests
    if not bound:
        return config
    share = max(1, -(-bound // api_servers))
    scheduler = dataclasses.replace(config.scheduler, max_waiting_requests=share)
    return dataclasses.replace(config, scheduler=scheduler)
