"""ServerState: the routes' shared state: the engine, or the reason why there is none yet.

The server binds its port before it has opened the model, so that /health can report the progress of
start-up; until then every request is refused with that reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from atom.entrypoints.http.body_budget import (
    MAX_BODY_BYTES,
    MAX_BODY_BYTES_WITH_IMAGES,
    BodyBudget,
    BodyShare,
)
from atom.entrypoints.http.body_turns import BodyTurns
from atom.entrypoints.http.client_identity import ClientIdentity
from atom.entrypoints.http.errors import shortened
from atom.entrypoints.http.loadable_paths import LoadableByRequests
from atom.entrypoints.metrics_exchange import MetricsExchange, ServerNumbers
from atom.entrypoints.openai.server_names import ServerNames
from atom.entrypoints.startup.startup_timeline import StartupTimeline
from atom.entrypoints.startup.supported_endpoints import Offer, supported_endpoints
from atom.errors import EngineDeadError, RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.engine_lifecycle import EngineState, EngineStatus
from atom.model_engine.front.loras.followed_loras import FollowedLoras

_MOST_NAMED = 8  # names of models in an error


@dataclass(slots=True)
class ServerState:
    """Hold the state that the routes of one HTTP process share. phase: of start-up before the
    engine exists. created: seconds since 1970, for the API. stopping: a signal arrived before the
    engine existed. timeline: of the start-up. waits_for: further conditions of /health once the
    engine here serves, such as other processes on the same port. exchange: with those processes, if
    there are any. bodies: the memory budget of requests' bodies in this process. turns: when large
    ones are parsed. names: requests' names of the model; empty for its own. clients: identify
    requests' clients. server_names: those of all models of the server. loadable: the places that
    requests may load from. refuses_late: only the server that computes a request can validate it.
    followed_loras: of --lora-modules-file, if there is one."""

    phase: str = "opening the model"
    names: tuple[str, ...] = ()
    engine: AsyncLLMEngine | None = None
    stopping: bool = False
    waits_for: str = ""
    refuses_late: bool = False
    exchange: MetricsExchange | None = None
    followed_loras: FollowedLoras | None = None
    bodies: BodyBudget = field(default_factory=BodyBudget)
    turns: BodyTurns = field(default_factory=BodyTurns)
    clients: ClientIdentity = field(default_factory=ClientIdentity)
    server_names: ServerNames = field(default_factory=ServerNames)
    loadable: LoadableByRequests = field(default_factory=LoadableByRequests)
    timeline: StartupTimeline = field(default_factory=StartupTimeline)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def status(self) -> EngineStatus:
        if self.engine is not None:
            status = self.engine.status
            if self.waits_for and status.state is EngineState.READY:
                return replace(status, state=EngineState.STARTING, reason=self.waits_for)
            return status
        if self.stopping:
            return EngineStatus(EngineState.DRAINING, "the server is shutting down")
        return EngineStatus(EngineState.STARTING, self.phase)

    @property
    def holds_requests(self) -> bool:
        """Return whether requests wait for the engine to wake up."""
        return self.engine is not None and self.engine.holds_asleep

    @property
    def reads_images(self) -> bool:
        """Return whether the model reads images."""
        return self.engine is not None and self.engine.images is not None

    @property
    def is_ending(self) -> bool:
        """Return whether the server will never take a request again."""
        return self.status.state in (EngineState.DRAINING, EngineState.DEAD)

    def body_share(self) -> BodyShare:
        """Open a share of the memory for a body with a prompt of the model."""
        engine = self.engine
        most_tokens = None if engine is None else engine.config.model.max_model_len
        return self.bodies.share(most_tokens, most_bytes=self.most_body_bytes)

    @property
    def most_body_bytes(self) -> int:
        """Return the most bytes of a request's body."""
        return MAX_BODY_BYTES_WITH_IMAGES if self.reads_images else MAX_BODY_BYTES

    def own_numbers(self) -> ServerNumbers:
        """Return this process's counts since the engine exists."""
        assert self.engine is not None
        return ServerNumbers(
            self.engine.processor.metrics,
            self.engine.stats_by_rank,
            self.engine.counts_by_client(),
            {} if self.engine.images is None else dict(self.engine.images.memory.figures()),
        )

    async def numbers(self) -> ServerNumbers | None:
        """Collect the numbers of the whole server; None before the engine exists. Raises
        `RequestError` (503) if another process does not report its own."""
        if self.engine is None:
            return None
        if self.exchange is None or self.waits_for:
            return self.own_numbers()
        return await self.exchange.total()

    def serving_engine(self, model: str | None) -> AsyncLLMEngine:
        """Return the engine, when it can take a request for `model` (None: whatever is served).

        Raises `RequestError` (404 for another model, 503 while starting or draining) or
        `EngineDeadError`.
        """
        if self.engine is None:
            status = self.status
            raise RequestError(
                f"the server is {status.state}: {status.reason}; try again soon", status=503
            )
        if model is not None:
            self.check_name(model, self.engine)
        self.engine.check_serving()
        return self.engine

    def served_names(self, engine: AsyncLLMEngine) -> tuple[str, ...]:
        """List the names by which requests may name the model."""
        return self.names or (engine.config.model.served_name,)

    def offer(self, engine: AsyncLLMEngine) -> Offer:
        """Return the model as clients can use it."""
        has_template = engine.processor.has_chat_template
        endpoints = supported_endpoints(engine.config.model, has_template=has_template)
        return Offer(self.served_names(engine)[0], endpoints)

    def names_now(self) -> tuple[str, ...]:
        """List the names by which requests may name the model; none before it is known."""
        return () if self.engine is None else self.served_names(self.engine)

    def all_names(self) -> list[str]:
        """List the names of the model and of its adapters. Raises as `started_engine`."""
        engine = self.started_engine()
        return [*self.served_names(engine), *(lora.name for lora in engine.loras)]

    def check_name(self, model: str, engine: AsyncLLMEngine) -> None:
        """Raises `RequestError` (404) for a model that is not served."""
        names = [*self.served_names(engine), *(lora.name for lora in engine.loras)]
        if model not in names:
            raise not_served(model, names)

    def started_engine(self) -> AsyncLLMEngine:
        """Return the engine whose start-up is complete, whatever it does now."""
        if self.engine is None or self.engine.status.report is None:
            status = self.status
            if status.state is EngineState.DEAD:
                raise EngineDeadError(status.reason)
            raise RequestError(
                f"the server is {status.state}: {status.reason}; try again soon", status=503
            )
        return self.engine


def not_served(model: str, names: Sequence[str]) -> RequestError:
    """Make the error (404) for a model that is not served."""
    has = " and ".join(map(repr, names[:_MOST_NAMED]))
    if len(names) > _MOST_NAMED:
        has += f" and {len(names) - _MOST_NAMED} more (GET /v1/models)"
    return RequestError(
        f"the model {shortened(model)!r} is not served here; this server has {has}",
        param="model",
        status=404,
        code="model_not_found",
    )
