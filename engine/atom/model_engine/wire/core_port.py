"""What an engine needs of the thing that runs its requests: CoreManager's calls, as a type.

CoreManager is the only implementation the product has; tests drive both engines with an in-process
one, without a model or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from atom.config import Config
from atom.model_engine.request import Request
from atom.model_engine.wire.core_events import CoreEvent


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
