"""Sends requests when they are due: at a time, and some seconds after the answers they wait for.

Knows neither HTTP nor prompts: what is sent is the caller's coroutine, and time is the event
loop's, so a test can let hours pass at once. Requests that are due at the same time start in the
order in which they are given. Used by `atom bench serve` for every dataset.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Departure:
    """Schedule a request: not before `at_seconds` from the start, and `delay_seconds` after the
    last answer of `after`, which are places of earlier requests."""

    at_seconds: float = 0.0
    after: tuple[int, ...] = ()
    delay_seconds: float = 0.0


async def replay(
    departures: Sequence[Departure],
    send: Callable[[int], Awaitable[Answer]],
    most_in_flight: int | None = None,
) -> list[Answer]:
    """Send each once and return the answers in the order of `departures`.

    A request that waits for room is not yet sent. What `send` raises ends all. Raises `ValueError`
    on a request that waits for itself or a later one."""
    return await _Replay(departures, send, most_in_flight).run()


class _Replay(Generic[Answer]):
    def __init__(
        self,
        departures: Sequence[Departure],
        send: Callable[[int], Awaitable[Answer]],
        most_in_flight: int | None,
    ) -> None:
        self._departures = departures
        self._send = send
        self._room = len(departures) if most_in_flight is None else most_in_flight
        self._changed = asyncio.Event()
        self._started = 0.0
        self._awaited = [len(set(each.after)) for each in departures]  # answers still missing
        self._waiters: dict[int, list[int]] = {}
        self._due: list[tuple[float, int]] = []  # a heap of (seconds from the start, place)
        self._answers: dict[int, Answer] = {}
        for place, departure in enumerate(departures):
            for earlier in set(departure.after):
                if not 0 <= earlier < place:
                    raise ValueError(f"request {place} waits for request {earlier}")
                self._waiters.setdefault(earlier, []).append(place)
            if not departure.after:
                heapq.heappush(self._due, (departure.at_seconds, place))

    async def run(self) -> list[Answer]:
        self._started = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            while len(self._answers) < len(self._departures):
                self._start_due(group)
                self._changed.clear()
                await self._change()
        return [self._answers[place] for place in range(len(self._departures))]

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._started

    def _start_due(self, group: asyncio.TaskGroup) -> None:
        while self._room and self._due and self._due[0][0] <= self._elapsed():
            _, place = heapq.heappop(self._due)
            self._room -= 1
            group.create_task(self._one(place))

    async def _change(self) -> None:
        """Wait until an answer has come, or the next request is due and there is room for it."""
        at = self._started + self._due[0][0] if self._room and self._due else None
        try:
            async with asyncio.timeout_at(at):
                await self._changed.wait()
        except TimeoutError:
            pass  # the next one is due

    async def _one(self, place: int) -> None:
        self._answers[place] = await self._send(place)
        self._room += 1
        for waiter in self._waiters.get(place, ()):
            self._awaited[waiter] -= 1
            if self._awaited[waiter] == 0:
                departure = self._departures[waiter]
                due = max(departure.at_seconds, self._elapsed() + departure.delay_seconds)
                heapq.heappush(self._due, (due, waiter))
        self._changed.set()
