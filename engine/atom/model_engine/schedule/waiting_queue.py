"""WaitingQueue: the one order in which requests are served, and the next one in it.

A request is due at its arrival plus a second for every step of its priority (lower is sooner, 0 the
default), and the request that is due first is served first. Waiting so counts against priority: a
request is only ever overtaken by ones that arrive within the difference of their priorities in
seconds, and none starves however many urgent ones arrive. Equal priorities are first come, first
served. The order holds for a request's whole life: preempted ones return to their place. Used by
Scheduler only; reads no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from atom.model_engine.sequence import Sequence

SECONDS_PER_PRIORITY_STEP = 1.0

Rank = tuple[float, int]


def rank_of(sequence: Sequence) -> Rank:
    """Return the sort key of the service order, unique among sequences; smaller is earlier."""
    return sequence.arrive_time + sequence.priority * SECONDS_PER_PRIORITY_STEP, sequence.id


class WaitingQueue:
    """Holds sequences by rank: entering and leaving cost O(log n), looking at the next one O(1)."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Sequence]] = []
        self._waiting: set[int] = set()  # ids; an entry of the heap without one has left

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """Return all that wait, in no particular order."""
        return (sequence for _, sequence in self._heap if sequence.id in self._waiting)

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (rank_of(sequence), sequence))
        self._waiting.add(sequence.id)

    @property
    def first(self) -> Sequence:
        """Return the sequence that is served next; at least one must wait."""
        return self._heap[0][1]

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that was admitted or ended."""
        self._waiting.remove(sequence.id)
        while self._heap and self._heap[0][1].id not in self._waiting:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._waiting):  # mostly aborted ones: let go of them
            self._heap = [entry for entry in self._heap if entry[1].id in self._waiting]
            heapq.heapify(self._heap)
