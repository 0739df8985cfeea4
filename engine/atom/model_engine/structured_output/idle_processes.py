"""IdleProcesses: matcher processes that wait for a sequence of their grammar, until they end.

A process that stays spares the next request of its grammar a start. Few stay, and none for ever:
each holds memory. Knows no sequences; used by MatcherPool, on the engine core's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from atom.model_engine.structured_output.matcher_link import MatcherLink

MOST_IDLE = 16
IDLE_SECONDS = 60.0

# Calls a function once after a delay in seconds, on a thread; returns the call that stops it.
Timer = Callable[[float, Callable[[], None]], Callable[[], None]]


class IdleProcesses:
    """Times in monotonic seconds."""

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
    ) -> None:
        """wake: called from any thread when `take_overdue` has something to return."""
        self._wake = wake
        self._clock = clock
        self._timer = timer or _after
        self._since: dict[MatcherLink, float] = {}  # the one that waits longest first
        self._stop: Callable[[], None] | None = None  # of the timer that runs
        self._rang = False

    def put(self, link: MatcherLink) -> list[MatcherLink]:
        """Note that a process idles from now on. Returns the surplus processes."""
        self._since.setdefault(link, self._clock())
        over = list(self._since)[: max(0, len(self._since) - MOST_IDLE)]
        for each in over:
            del self._since[each]
        self._set_timer()
        return over

    def discard(self, link: MatcherLink) -> None:
        """Note that a process has a sequence, or has ended."""
        self._since.pop(link, None)

    def take_overdue(self) -> list[MatcherLink]:
        """Return the processes that have waited long enough, which wait no more."""
        if not self._rang:
            return []
        self._rang, self._stop = False, None
        due = self._clock() - IDLE_SECONDS
        over = [link for link, since in self._since.items() if since <= due]
        for link in over:
            del self._since[link]
        self._set_timer()
        return over

    def close(self) -> None:
        """Stop the timer."""
        self._since.clear()
        if self._stop is not None:
            self._stop()

    def _set_timer(self) -> None:
        if self._since and self._stop is None:
            left = next(iter(self._since.values())) + IDLE_SECONDS - self._clock()
            self._stop = self._timer(max(0.0, left), self._ring)

    def _ring(self) -> None:
        self._rang = True
        self._wake()


def _after(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel
