"""EnginesWithBackoff: an EnginePort in front of another, so that silent engines cost little.

A reconcile waits a moment for an answer and then continues without; a late answer is kept for the
next look. A silent engine is not asked for a while, longer each time. Knows nothing of HTTP; wired
by the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from atom_operator.cluster.engines import EnginePort
from atom_operator.domain import AdapterState, Capacity, EngineHealth, EngineMetrics

_WAIT_SECONDS = 0.25  # an engine in the same cluster answers in milliseconds
_LATE_SECONDS = 60.0  # for how long a late answer is news
_FIRST_PAUSE_SECONDS = 5.0
_LAST_PAUSE_SECONDS = 300.0
_TIDY_ABOVE = 1024

A = TypeVar("A")
_Ask = Callable[[str], Awaitable[A | None]]


class EnginesWithBackoff:
    """Ask engines, and back off from silent ones; `monotonic` is a clock in seconds."""

    def __init__(self, engines: EnginePort, monotonic: Callable[[], float]) -> None:
        self._healths = _Line[EngineHealth](engines.health, monotonic)
        self._capacities = _Line[Capacity](engines.capacity, monotonic)
        self._metrics = _Line[EngineMetrics](engines.metrics, monotonic)
        self._adapters = _Line[tuple[AdapterState, ...]](engines.adapters, monotonic)

    async def health(self, address: str) -> EngineHealth | None:
        return await self._healths.ask(address)

    async def capacity(self, address: str) -> Capacity | None:
        return await self._capacities.ask(address)

    async def metrics(self, address: str) -> EngineMetrics | None:
        return await self._metrics.ask(address)

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        return await self._adapters.ask(address)


@dataclass(slots=True)
class _Silence(Generic[A]):
    """Hold an engine that did not answer in time, and its pending answer."""

    due: float  # when to ask again
    pause_seconds: float
    question: asyncio.Future[A | None] | None = field(default=None)


class _Line(Generic[A]):
    """Send one question to many engines, with an entry for each silent one."""

    def __init__(self, ask: _Ask[A], monotonic: Callable[[], float]) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._silent: dict[str, _Silence[A]] = {}

    async def ask(self, address: str) -> A | None:
        silence = self._silent.get(address)
        if silence is not None:
            late = self._late_answer(silence)
            if late is not None:
                del self._silent[address]
                return late
            if silence.question is not None or self._monotonic() < silence.due:
                return None
        question = asyncio.ensure_future(self._ask(address))
        done, _ = await asyncio.wait([question], timeout=_WAIT_SECONDS)
        answer = question.result() if done else None
        if answer is not None:
            self._silent.pop(address, None)
            return answer
        self._leave_alone(address, silence, None if done else question)
        return None

    def _late_answer(self, silence: _Silence[A]) -> A | None:
        """Return the answer that arrived after the wait, unless it is out of date."""
        question = silence.question
        if question is None or not question.done():
            return None
        silence.question = None
        answer = question.result()
        asked = silence.due - silence.pause_seconds
        return answer if self._monotonic() - asked < _LATE_SECONDS else None

    def _leave_alone(
        self, address: str, before: _Silence[A] | None, question: asyncio.Future[A | None] | None
    ) -> None:
        pause = _FIRST_PAUSE_SECONDS
        if before is not None:
            pause = min(2 * before.pause_seconds, _LAST_PAUSE_SECONDS)
        if len(self._silent) >= _TIDY_ABOVE:
            self._tidy()
        self._silent[address] = _Silence(self._monotonic() + pause, pause, question)

    def _tidy(self) -> None:
        """Forget pods that were not asked for long: most of them are gone."""
        long_ago = self._monotonic() - 2 * _LAST_PAUSE_SECONDS
        self._silent = {
            address: silence for address, silence in self._silent.items() if silence.due > long_ago
        }
