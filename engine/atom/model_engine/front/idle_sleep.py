"""IdleSleep: puts an engine to sleep that gets no requests for a while (`--sleep-idle-seconds`).

`seconds_left` decides when; Pauses sleeps, and wakes up for a request. Run by AsyncLLMEngine on its
loop. It waits for events and for the remaining time, and never polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from atom.errors import AtomError, EngineDeadError
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.pauses import Pauses

logger = logging.getLogger(__name__)


def seconds_left(idle_seconds: float, quiet_since: float, awake_since: float, now: float) -> float:
    """Return how long an engine without a request stays awake. awake_since: it serves; one that was
    woken up has its whole time again."""
    return max(quiet_since, awake_since) + idle_seconds - now


class IdleSleep:
    def __init__(
        self,
        idle_seconds: float | None,
        lifecycle: EngineLifecycle,
        requests: OpenRequests,
        pauses: Pauses,
        clock: Callable[[], float],
    ) -> None:
        """idle_seconds: without a request, behind which the engine sleeps; None for never."""
        self._idle_seconds = idle_seconds
        self._lifecycle = lifecycle
        self._requests = requests
        self._pauses = pauses
        self._clock = clock
        self._turns: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Put the engine to sleep whenever its time is over, until `stop`."""
        if self._idle_seconds is not None:
            self._turns = asyncio.ensure_future(self._take_turns(self._idle_seconds))

    def stop(self) -> None:
        """Stop watching for idleness without changing the sleep state."""
        if self._turns is not None:
            self._turns.cancel()

    async def _take_turns(self, idle_seconds: float) -> None:
        with contextlib.suppress(EngineDeadError):  # a start-up failure is reported elsewhere
            await self._lifecycle.wait_ready()
        awake_since = self._clock()
        while not self._lifecycle.is_ending:
            if self._lifecycle.held_because:
                await self._lifecycle.wait_woken()
                awake_since = self._clock()
            await self._requests.wait_idle(None)
            quiet_since = self._requests.quiet_since
            left = seconds_left(idle_seconds, quiet_since, awake_since, self._clock())
            if left > 0:
                await asyncio.sleep(left)
            elif not await self._fell_asleep(idle_seconds):
                awake_since = self._clock()  # and then again

    async def _fell_asleep(self, idle_seconds: float) -> bool:
        try:
            await self._pauses.sleep_until_asked(idle_seconds)
        except AtomError as error:
            logger.warning("the engine stays awake for now: %s", error)
            return False
        return True
