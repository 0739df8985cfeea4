"""ModelTurns: lets a request compute once its model is awake; puts models to sleep and wakes them
up as SharedDevice decides.

Belongs to one event loop. Knows engines by `sleep` and `wake_up` alone, and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from atom.config_values import OpenRequestsMode, SleepLevel
from atom.entrypoints.swap.shared_device import SharedDevice, Turn
from atom.errors import RequestError

logger = logging.getLogger(__name__)


class Sleeper(Protocol):
    """An engine, as far as it gives its memory back and takes it again."""

    async def sleep(
        self, level: SleepLevel, mode: OpenRequestsMode = OpenRequestsMode.WAIT
    ) -> None: ...

    async def wake_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """Limit the requests that wait for their model. most: of one model; 0 for any number. seconds:
    that one may wait; None for any time."""

    most: int
    seconds: float | None


class ModelTurns:
    def __init__(
        self,
        device: SharedDevice,
        engines: Mapping[str, Sleeper],
        limits: HoldLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._engines = engines
        self._limits = limits
        self._clock = clock
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._change: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def turn_of(self, name: str) -> AsyncIterator[None]:
        """Keep the model awake within the context. Raises `RequestError`: 503 if too many wait for
        it, or it could not be woken up; 504 if it was not awake in time."""
        held = self._device.num_waiting(name)
        if self._limits.most and held >= self._limits.most:
            raise RequestError(
                f"{held} requests wait for {name} to wake up, and this server holds no more; try "
                "again soon",
                status=503,
            )
        ticket = next(self._tickets)
        admitted = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._device.arrive(name, ticket, self._clock())
        self._advance()
        await self._wait(name, ticket, admitted)
        try:
            yield
        finally:
            self._device.end(name, self._clock())
            self._advance()

    async def _wait(self, name: str, ticket: int, admitted: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.seconds):
                await asyncio.shield(admitted)
        except BaseException as error:
            if admitted.done() and not admitted.exception():  # admitted as it left
                self._device.end(name, self._clock())
            else:
                self._device.give_up(name, ticket)
            self._waiting.pop(ticket, None)
            self._advance()
            if isinstance(error, TimeoutError):
                raise RequestError(
                    f"{name} was not awake within {self._limits.seconds:g} s; allow more time",
                    status=504,
                    code="timeout",
                ) from None
            raise

    def _advance(self) -> None:
        """Admit requests and start the next sleep or wake-up, or set a timer for the next
        decision."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        turn = self._device.turn(self._clock())
        for ticket in turn.admitted:
            self._waiting.pop(ticket).set_result(None)
        if turn.sleep is not None or turn.wake is not None:
            self._change = asyncio.create_task(self._carry_out(turn))
        elif turn.again_at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, turn.again_at - self._clock()), self._advance)

    async def _carry_out(self, turn: Turn) -> None:
        begun = self._clock()
        try:
            if turn.wake is not None:
                await self._engines[turn.wake].wake_up()
            elif turn.sleep is not None:
                # Requests that are still open have had their time: they are preempted.
                engine = self._engines[turn.sleep]
                await engine.sleep(SleepLevel.WEIGHTS_ON_HOST, OpenRequestsMode.KEEP)
        except Exception as error:  # else no model would have a turn any more
            self._give_up_waking(turn, error)
        else:
            self._device.changed(self._clock())
            what = f"{turn.wake} is awake" if turn.wake else f"{turn.sleep} sleeps"
            logger.info("%s, after %.2f s", what, self._clock() - begun)
        self._advance()

    def _give_up_waking(self, turn: Turn, error: Exception) -> None:
        """Refuse the waiting requests, which would wait for as long as waking up fails."""
        name = turn.wake or turn.sleep
        logger.error("%s could not %s: %s", name, "wake up" if turn.wake else "sleep", error)
        for ticket in self._device.failed():
            refusal = RequestError(f"{name} could not be woken up: {error}", status=503)
            self._waiting.pop(ticket).set_exception(refusal)

    async def close(self) -> None:
        """Wait for the running change to end; no request follows."""
        if self._timer is not None:
            self._timer.cancel()
        if self._change is not None:
            await asyncio.wait([self._change])
