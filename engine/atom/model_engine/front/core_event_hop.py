"""CoreEventHop: brings the core's events from its thread to the event loop, in order.

The handler gets all events that have accumulated at once, but no more than it handles in a moment:
behind them the loop serves all else before it handles the rest. Owned by AsyncLLMEngine; knows
nothing of the events' content.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from atom.model_engine.wire.core_port import CoreEvent

logger = logging.getLogger(__name__)

MOST_SECONDS = 0.01  # of one hop, until its last event begins


class CoreEventHop:
    def __init__(
        self,
        handle: Callable[[Iterable[CoreEvent]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """handle: called on the loop with the pending events, later arrivals included. clock: in
        seconds."""
        self._handle = handle
        self._clock = clock
        self._arrived: deque[CoreEvent] = deque()
        self._is_coming = False  # a hop that will take what has arrived
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Deliver events to the running loop from here on."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: CoreEvent) -> None:
        """Pass an event from the core's thread to the loop."""
        self._arrived.append(event)
        if self._is_coming:
            return
        self._is_coming = True
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed, with no waiter left
            logger.debug("an event came after the event loop had ended")

    def _take(self) -> None:
        # First, so that an event is seen below or brings a hop of its own.
        self._is_coming = False
        if self._arrived:
            self._handle(self._there())
        if self._arrived and not self._is_coming:
            self._is_coming = True
            self._loop.call_soon(self._take)

    def _there(self) -> Iterator[CoreEvent]:
        ends = self._clock() + MOST_SECONDS
        while self._arrived:
            yield self._arrived.popleft()
            if self._clock() >= ends:
                return
