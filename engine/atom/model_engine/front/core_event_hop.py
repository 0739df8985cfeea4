"""CoreEventHop: brings the core's events from its thread to the event loop, in order.

One hop per event; the handler gets all events that have accumulated at once. Owned by
AsyncLLMEngine; knows nothing of the events' content.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from atom.model_engine.wire.core_port import CoreEvent

logger = logging.getLogger(__name__)


class CoreEventHop:
    def __init__(self, handle: Callable[[Iterable[CoreEvent]], None]) -> None:
        """handle: called on the loop with all pending events, later arrivals included."""
        self._handle = handle
        self._arrived: deque[CoreEvent] = deque()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Events go to the running loop from here on."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: CoreEvent) -> None:
        """Pass an event from the core's thread to the loop: one hop, nothing else."""
        self._arrived.append(event)
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed, with no waiter left
            logger.debug("an event came after the event loop had ended")

    def _take(self) -> None:
        if self._arrived:
            self._handle(self._there())

    def _there(self) -> Iterator[CoreEvent]:
        while self._arrived:
            yield self._arrived.popleft()
