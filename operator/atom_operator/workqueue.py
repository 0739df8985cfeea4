"""WorkQueue: keys to reconcile, each at most once at a time, retried with growing delays.

The semantics of client-go's queue: a key added while it waits is one entry, a key added while it is
processed is processed once more afterwards. Urgent keys come first, have a worker of their own, and
share the processor with one other key at most: a change does not wait for a resync. Other keys rest
for a moment after they were processed: the ten events of one rollout arrive in a burst, and cost
one look or two. Knows nothing of Kubernetes or of a key's meaning. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
# Returns the seconds after which to look again without being asked, or None.
Handler = Callable[[K], Awaitable[float | None]]

_logger = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 60.0
_REST_SECONDS = 1.0


class WorkQueue(Generic[K]):
    """Handles each key once at a time; `expected` errors are logged as one line, all others with
    their traceback."""

    def __init__(self, handler: Handler[K], *, expected: type[Exception]) -> None:
        self._handler = handler
        self._expected = expected
        self._waiting: dict[K, bool] = {}  # and whether it is urgent
        self._urgent: OrderedDict[K, None] = OrderedDict()  # waiting ones that may begin
        self._others: OrderedDict[K, None] = OrderedDict()
        self._processing: dict[K, bool] = {}  # and whether it was urgent
        self._resting: dict[K, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()
        self._workers = 0
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Process `key` soon, and before everything that is not urgent if it is."""
        if key in self._waiting and (self._waiting[key] or not urgent):
            return
        self._waiting[key] = urgent
        self._make_ready(key)

    async def work(self) -> None:
        """Process keys until cancelled; run as many of these as keys may be processed at once."""
        self._workers += 1
        try:
            while True:
                while (key := self._take()) is None:
                    self._news.clear()
                    await self._news.wait()
                done = False
                try:
                    done = await self._process(key)
                finally:
                    self._end(key, rests=done)
        finally:
            self._workers -= 1

    def close(self) -> None:
        """Forget all timers."""
        for timer in (*self._timers.values(), *self._resting.values()):
            timer.cancel()
        self._timers.clear()
        self._resting.clear()

    def _make_ready(self, key: K) -> None:
        """Let a key that waits begin, unless it is processed, or rests and is not urgent."""
        urgent = self._waiting[key]
        if key in self._processing or (key in self._resting and not urgent):
            return
        self._others.pop(key, None)
        (self._urgent if urgent else self._others)[key] = None
        self._news.set()

    def _take(self) -> K | None:
        """Take the key whose turn it is; None if none may begin now."""
        row = self._urgent or (self._others if self._has_room() else None)
        if not row:
            return None
        key, _ = row.popitem(last=False)
        self._processing[key] = self._waiting.pop(key)
        return key

    def _has_room(self) -> bool:
        """Return whether one more may begin that is not urgent."""
        urgent = sum(self._processing.values())
        most = 1 if urgent else max(1, self._workers - 1)
        return len(self._processing) - urgent < most

    def _end(self, key: K, *, rests: bool) -> None:
        del self._processing[key]
        if (resting := self._resting.pop(key, None)) is not None:
            resting.cancel()
        if rests:
            loop = asyncio.get_running_loop()
            self._resting[key] = loop.call_later(_REST_SECONDS, self._end_rest, key)
        if key in self._waiting:
            self._make_ready(key)
        self._news.set()  # there is room for another

    def _end_rest(self, key: K) -> None:
        del self._resting[key]
        if key in self._waiting:
            self._make_ready(key)

    def _call_after(self, key: K, seconds: float | None) -> None:
        """Process `key` after a while, which the newest look knows best; never where that is
        None."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(seconds, self._fire, key)

    def _fire(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    async def _process(self, key: K) -> bool:
        """Process a key and return whether that succeeded; failed keys are retried with separate
        delays."""
        try:
            again = await self._handler(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(_FIRST_RETRY_SECONDS * 2 ** (failures - 1), _LAST_RETRY_SECONDS)
            known = isinstance(error, self._expected)
            _logger.warning("%s: %s; again in %gs", key, error, delay, exc_info=not known)
            self._call_after(key, delay)
            return False
        self._failures.pop(key, None)
        self._call_after(key, again)
        return True
