"""WorkQueue: keys to reconcile, each at most once at a time, retried with growing delays.

The semantics of client-go's queue: a key added while it waits is one entry, a key added while it is
processed is processed once more afterwards. What is urgent comes before what is not, so that a
change does not wait behind a look at everything. Knows nothing of Kubernetes or of what a key is.
Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
# Returns the seconds after which to look again without being asked, or None.
Handler = Callable[[K], Awaitable[float | None]]

_logger = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """Handles each key once at a time; `expected` errors are logged as one line, all others with
    their traceback."""

    def __init__(self, handler: Handler[K], *, expected: type[Exception]) -> None:
        self._handler = handler
        self._expected = expected
        # May hold a key twice, when it became urgent after it was added; the second is skipped.
        self._ready: asyncio.PriorityQueue[tuple[bool, int, K]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._waiting: dict[K, bool] = {}  # and whether it is urgent
        self._processing: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Process `key` soon, and before everything that is not urgent if it is."""
        if key in self._waiting and (self._waiting[key] or not urgent):
            return
        self._waiting[key] = urgent
        if key not in self._processing:
            self._make_ready(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Process `key` after a while; an earlier timer of the same key stays."""
        loop = asyncio.get_running_loop()
        due, timer = loop.time() + seconds, self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._fire, key)

    async def work(self) -> None:
        """Process keys until cancelled; run as many of these as keys may be processed at once."""
        while True:
            _, _, key = await self._ready.get()
            if key not in self._waiting or key in self._processing:
                continue
            del self._waiting[key]
            self._processing.add(key)
            try:
                await self._process(key)
            finally:
                self._processing.discard(key)
                if key in self._waiting:
                    self._make_ready(key)

    def close(self) -> None:
        """Forget all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _make_ready(self, key: K) -> None:
        self._ready.put_nowait((not self._waiting[key], next(self._numbers), key))

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _process(self, key: K) -> None:
        try:
            again = await self._handler(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(_FIRST_RETRY_SECONDS * 2 ** (failures - 1), _LAST_RETRY_SECONDS)
            known = isinstance(error, self._expected)
            _logger.warning("%s: %s; again in %gs", key, error, delay, exc_info=not known)
            self.add_after(key, delay)
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add_after(key, again)
