"""Heartbeats of an engine core: how a slow step is told from a dead one.

A core sends STATS every second from a separate thread, so that a long step does not silence it —
but only if the core has made progress since the last beat: it waits for work, or it finished a
step, or, on the CPU, where one step of a long prompt may take minutes, a layer of it. A core that
is stopped, deadlocked or stuck in a driver sends nothing, and after a configured time CoreManager
calls it stalled. One beat makes it healthy again.

`Pulse` is the core's side, `HeartbeatWatch` the manager's; both are plain decisions without clocks
or sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

BEAT_SECONDS = 1.0


class Pulse:
    """Evidence of progress. Written by the core's loop, read by the thread that beats; single
    attribute reads and writes, so no lock."""

    def __init__(self) -> None:
        self.resting = False  # blocked in a poll, waiting for messages: alive by definition
        self._ticks = 0
        self._seen_ticks = 0

    def tick(self) -> None:
        """Record a completed step or layer."""
        self._ticks += 1

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Exempt long work that is no step, such as waiting, from hang detection."""
        self.resting = True
        try:
            yield
        finally:
            self.resting = False

    def got_on(self) -> bool:
        """Return whether a beat is deserved since the last call."""
        ticks = self._ticks
        moved = ticks != self._seen_ticks
        self._seen_ticks = ticks
        return moved or self.resting


class HeartbeatWatch:
    """Track when each rank was last heard. Times in monotonic seconds."""

    def __init__(self, ranks: int, limit_seconds: float, now: float) -> None:
        """limit_seconds: silence that makes a rank stalled."""
        self._limit_seconds = limit_seconds
        self._heard = [now] * ranks
        self._stalled: set[int] = set()

    def hear(self, rank: int, now: float) -> bool:
        """Record a beat; return True if it ends a stall."""
        self._heard[rank] = now
        was_stalled = rank in self._stalled
        self._stalled.discard(rank)
        return was_stalled

    def forget(self, rank: int) -> None:
        """Stop watching a rank that is gone, which is reported separately."""
        self._stalled.add(rank)

    def newly_stalled(self, now: float) -> list[int]:
        """Return the ranks whose silence has just become too long; each is named once per stall."""
        found = [
            rank
            for rank, heard in enumerate(self._heard)
            if rank not in self._stalled and now - heard >= self._limit_seconds
        ]
        self._stalled.update(found)
        return found

    def silent_seconds(self, rank: int, now: float) -> float:
        return now - self._heard[rank]

    def seconds_to_next(self, now: float) -> float | None:
        """Return how long until a rank that is well could stall; None when all have stalled
        already."""
        well = [heard for rank, heard in enumerate(self._heard) if rank not in self._stalled]
        return max(0.0, min(well) + self._limit_seconds - now) if well else None
