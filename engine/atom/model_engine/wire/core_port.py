"""CorePort: the engine's interface to the cores that run its requests, and the events they return.

Presents all ranks as one engine. CoreManager implements it for processes of this server, and both
engines handle all of its events; WorkerCore implements it for replicas, which only AsyncLLMEngine
may have. Tests drive both engines with an in-process core, without a model or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atom.config import Config
from atom.model_engine.request import AnswerMove, Request
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    ProgressBody,
    RankStats,
    StreamBody,
    UtilityResponseBody,
)


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """An engine process is dead or could not start; the last event there is."""

    message: str
    user_error: bool


@dataclass(frozen=True, slots=True)
class CoreLost:
    """Report that one of several ranks is dead while the others continue. request_ids: the requests
    that it served."""

    rank: int
    message: str
    request_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CoreStalled:
    """A rank has computed nothing for too long; CoreResumed follows if it recovers."""

    rank: int
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class CoreResumed:
    rank: int


@dataclass(frozen=True, slots=True)
class CoreUnreachable:
    """Report that no engine can be reached now; CoreReached follows if that ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class CoreReached:
    """Report that the core can be reached again."""


@dataclass(frozen=True, slots=True)
class WeightsAre:
    """Requests that begin now are computed by weights of this version."""

    version: str


@dataclass(frozen=True, slots=True)
class AnswerWentOn:
    """Report that an answer continues elsewhere, since its engine was lost."""


@dataclass(frozen=True, slots=True)
class AnswerMoved:
    """Report that another server continues the answer to a request."""

    request_id: int
    move: AnswerMove


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request has ended with an error instead of its FinishedRow."""

    request_id: int
    error: Exception


CoreEvent = (
    EngineReport
    | ProgressBody
    | StreamBody
    | RankStats
    | UtilityResponseBody
    | CoreStalled
    | CoreResumed
    | CoreUnreachable
    | CoreReached
    | WeightsAre
    | AnswerWentOn
    | AnswerMoved
    | RequestFailed
    | CoreLost
    | CoreFailed
)


class CorePort(Protocol):
    """Every call may come from any thread. Events come on the implementation's own thread."""

    def start(self) -> None:
        """Begin to load; returns at once. EngineReport or CoreFailed follows as an event."""
        ...

    def add_requests(self, requests: Sequence[Request]) -> None: ...

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        """End requests early; each still open one is answered with its FinishedRow."""
        ...

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        """Run a named utility in every core; a UtilityResponseBody with the list of their results
        comes as an event."""
        ...

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """End the engine; blocks up to the timeout. No event comes after it."""
        ...


CoreFactory = Callable[[Config, Callable[[CoreEvent], None]], CorePort]
