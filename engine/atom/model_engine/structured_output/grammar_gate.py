"""GrammarGate: requests that wait for their grammar before they join the queue.

The scheduler never sees a request whose grammar is not compiled; the request keeps its place by its
time of arrival. One grammar may take seconds while others pass. Belongs to the engine core's
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from atom.errors import AtomError
from atom.model_engine.request import Request
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.grammar_compiler import GrammarCompiler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passed:
    """A request whose grammar is there."""

    request: Request
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that ends here; `reason` is for its client."""

    request: Request
    reason: str


class GrammarGate:
    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._held: dict[int, tuple[Request, Future[Grammar]]] = {}

    def __len__(self) -> int:
        """Return how many wait here."""
        return len(self._held)

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of the requests that wait for a grammar."""
        return tuple(self._held)

    @property
    def has_any_ready(self) -> bool:
        """Return whether `take` has something to give."""
        return any(future.done() for _, future in self._held.values())

    def hold(self, request: Request) -> None:
        """Take a request that asks for structured output; `take` gives it back."""
        asked = request.params.structured_outputs
        assert asked is not None
        self._held[request.id] = request, self._compiler.compile(asked.spec(), request.client_id)

    def take(self) -> list[Passed | Refused]:
        """Take the requests that need not wait any longer, in the order they came."""
        ready = [(request, future) for request, future in self._held.values() if future.done()]
        for request, _ in ready:
            del self._held[request.id]
        return [_outcome(request, future) for request, future in ready]

    def drop(self, request_ids: Iterable[int]) -> list[int]:
        """Forget requests, and return the ids that waited here. Their grammars still compile."""
        return [number for number in request_ids if self._held.pop(number, None) is not None]


def _outcome(request: Request, future: Future[Grammar]) -> Passed | Refused:
    try:
        return Passed(request, future.result())
    except AtomError as error:
        return Refused(request, str(error))
    except Exception:
        # A fault of ours ends this request, not the engine.
        logger.exception("a grammar could not be compiled")
        return Refused(request, "internal error while compiling it; the server's log has details")
