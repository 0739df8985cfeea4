"""BusyTime: bytes, and the seconds during which at least one thread moved some."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class BusyTime:
    """Counts for a rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active = 0
        self._since = 0.0  # until when the time is counted
        self._bytes = 0
        self._seconds = 0.0

    @contextmanager
    def busy(self) -> Iterator[Callable[[int], None]]:
        """Count the time inside. Gives a function that counts bytes."""
        with self._lock:
            self._count_time()
            self._active += 1
        moved = 0

        def count(size_bytes: int) -> None:
            nonlocal moved
            moved += size_bytes

        try:
            yield count
        finally:
            with self._lock:
                self._count_time()
                self._active -= 1
                self._bytes += moved

    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds until now, also of moves under way: a disk that stands
        still becomes slow before it answers."""
        with self._lock:
            self._count_time()
            return self._bytes, self._seconds

    def _count_time(self) -> None:
        now = self._clock()
        if self._active:
            self._seconds += now - self._since
        self._since = now
