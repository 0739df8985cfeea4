"""AtomDeployments as seen by kopf: its operator, for one term, with handlers that wake the queue.

The handlers are thin: an event names the AtomDeployment whose turn it is, and the reconcile reads
the API server. kopf lists, watches, continues after a broken or silent connection, and logs in
again. It stores nothing on the objects: no progress, no finalizer. It has a separate thread and
event loop, because at its end it cancels every task of its loop. Run by the runtime while this
replica leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import kopf
from kubernetes.aio.client import Configuration

from atom_operator import constants
from atom_operator.cluster.api_connection import Login, configuration_of_environment
from atom_operator.cluster.errors import ClusterError
from atom_operator.domain import ObjectKey

_logger = logging.getLogger(__name__)
# Bookmarks come each minute: more silence is a dead connection.
_SILENCE_SECONDS = 70.0
_REQUEST_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_PAGE_SIZE = 250
_BACKOFFS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # between tries of one request
_IDLE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 30.0
_WELL_SECONDS = 60.0  # a run of this length resets the pauses
_END_SECONDS = 2.0  # for kopf to close its connections
_SERVED_SECONDS = 2.0  # between two looks for the CRD


@dataclass(frozen=True, slots=True)
class DeploymentEvent:
    """An AtomDeployment as a watch shows it; unreported: no status speaks of its newest spec."""

    key: ObjectKey
    version: str
    is_unreported: bool
    owner: ObjectKey | None = None  # the AtomDeployment that this is the canary of

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> DeploymentEvent:
        metadata = found["metadata"]
        seen = (found.get("status") or {}).get("observedGeneration")
        owner = (metadata.get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
        return cls(
            ObjectKey.of(found),
            str(metadata.get("resourceVersion", "")),
            is_unreported=seen != metadata.get("generation"),
            owner=ObjectKey(metadata["namespace"], owner) if owner else None,
        )


Hear = Callable[[DeploymentEvent], None]


@dataclass(frozen=True, slots=True)
class _Memo:
    """Hold the handlers' context: where to report, how to log in, and the event that stops kopf."""

    tell: Hear
    login: Login
    stop: asyncio.Event


def deployment_registry() -> kopf.OperatorRegistry:
    """Build the registry of handlers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(memo: _Memo, **_: Any) -> kopf.ConnectionInfo:
        return connection_info(await memo.login())

    @kopf.on.event(constants.GROUP, constants.VERSION, constants.PLURAL, registry=registry)
    async def deployment_event(memo: _Memo, event: kopf.RawEvent, **_: Any) -> None:
        memo.tell(DeploymentEvent.of(event["object"]))

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: _Memo, **_: Any) -> None:
        memo.stop.set()  # kopf waits 5 s for the task that waits for this

    return registry


def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Name the client's server and credentials in kopf's words."""
    scheme, _, token = configuration.api_key.get("BearerToken", "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=True,
    )


def kopf_settings() -> kopf.OperatorSettings:
    """Let kopf only watch and call handlers: no events, no peering, no discovery, nothing
    written."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = None  # it would kill this process
    settings.persistence.progress_storage = _NoProgress()
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.watching.inactivity_timeout = _SILENCE_SECONDS
    settings.watching.connect_timeout = _CONNECT_SECONDS
    settings.watching.chunk_size = _PAGE_SIZE
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.networking.error_backoffs = _BACKOFFS_SECONDS
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.queueing.exit_timeout = _IDLE_SECONDS
    return settings


class DeploymentHandlers:
    """Watch AtomDeployments with kopf. `hear` is called with every event, in the event loop of
    `run`; `is_served` asks for the CRD."""

    def __init__(
        self,
        namespaces: tuple[str, ...],
        hear: Hear,
        is_served: Callable[[], Awaitable[bool]],
        *,
        login: Login = configuration_of_environment,
        settings: Callable[[], kopf.OperatorSettings] = kopf_settings,
    ) -> None:
        self._namespaces = namespaces
        self._hear = hear
        self._is_served = is_served
        self._login = login
        self._settings = settings

    async def run(self) -> None:
        """Run kopf until cancelled. kopf ends on errors that it cannot handle, such as a removed
        CRD; it restarts with a list, of which only the news wakes."""
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._wait_served()
            started = clock()
            try:
                await self._operate()
                ended = None
            except Exception as error:  # whatever it is, the watch has to come back
                ended = error
            if clock() - started >= _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            message = "the watch of AtomDeployments ended; again in %gs"
            _logger.warning(message, pause, exc_info=ended)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    async def _wait_served(self) -> None:
        """Wait for the CRD: kopf looks for its kinds once, and would otherwise run without."""
        while True:
            with contextlib.suppress(ClusterError):
                if await self._is_served():
                    return
            await asyncio.sleep(_SERVED_SECONDS)

    async def _operate(self) -> None:
        """Run kopf's operator in a thread. A cancellation stops it; its later events are ignored,
        and a thread that does not end in time is left behind."""
        ours, theirs = asyncio.get_running_loop(), asyncio.new_event_loop()
        ended: asyncio.Future[Exception | None] = ours.create_future()
        stop, is_heard = asyncio.Event(), True

        def hear(event: DeploymentEvent) -> None:
            if is_heard:
                self._hear(event)

        def tell(event: DeploymentEvent) -> None:
            ours.call_soon_threadsafe(hear, event)

        def work() -> None:
            failure = self._in_thread(theirs, _Memo(tell, self._login, stop))
            with contextlib.suppress(RuntimeError):  # left behind, and our loop is closed
                ours.call_soon_threadsafe(ended.set_result, failure)

        threading.Thread(target=work, name="kopf", daemon=True).start()
        try:
            failure = await asyncio.shield(ended)
        finally:
            is_heard = False
            with contextlib.suppress(RuntimeError):  # it has ended, and its loop is closed
                theirs.call_soon_threadsafe(stop.set)
            await asyncio.wait([ended], timeout=_END_SECONDS)
        if failure is not None:
            raise failure

    def _in_thread(self, loop: asyncio.AbstractEventLoop, memo: _Memo) -> Exception | None:
        """Run until `memo.stop` is set, or kopf fails; return its error."""
        operator = kopf.operator(
            registry=deployment_registry(),
            settings=self._settings(),
            memo=memo,
            stop_flag=memo.stop,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            # Otherwise kopf asks for the user's name, and a container's has none.
            identity=cast("Any", socket.gethostname()),
        )
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(operator)
        except (Exception, asyncio.CancelledError) as error:
            return error if isinstance(error, Exception) else None
        return None


class _NoProgress(kopf.ProgressStorage):
    """Handlers of events have no progress."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class _NoDiffBase(kopf.DiffBaseStorage):
    """Store no last-handled state: no handler asks for changed fields, and a copy of every object
    is saved."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None
