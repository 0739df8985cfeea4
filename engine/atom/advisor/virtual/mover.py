"""VirtualMover: the copies of a host's tier of the KV cache, which only take time.

It takes the place of the runner's copies behind the engine's own KVTiers. Each direction copies one
call after the other, at the rate of the card's link to its host. Blocks are gathered and filled in
the order of the steps: a store begins after the steps that were submitted before it, and a load
does not end before them. Used by the simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from atom.advisor.virtual.executor import VirtualExecutor
from atom.model_engine.page_moves import Move, MoveTotals
from atom.sizing.host_tier import HostTier


@dataclass(frozen=True, slots=True)
class _Copy:
    """A call, and when its copies are made. totals: of the copies until then."""

    number: int
    ends_at: float
    totals: MoveTotals


class VirtualMover:
    """Implements PageMover."""

    def __init__(self, host: HostTier, bytes_per_second: float, executor: VirtualExecutor) -> None:
        """bytes_per_second: of one device, in each direction."""
        self._host = host
        self._rate = bytes_per_second
        self._executor, self._clock = executor, executor.clock
        self._stores_end = self._loads_end = 0.0
        self._planned = MoveTotals()
        self._under_way: deque[_Copy] = deque()
        self._moved = 0
        self._totals = MoveTotals()

    @property
    def next_end(self) -> float | None:
        """Return when the oldest call ends; None if none is under way."""
        return self._under_way[0].ends_at if self._under_way else None

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        """Begin copies behind those of the same direction."""
        now, before = self._clock.now, self._planned
        stored, loaded = self._bytes(saves), self._bytes(loads)
        device_free = max(now, self._executor.free_at)
        self._stores_end = max(device_free, self._stores_end) + stored / self._rate
        self._loads_end = max(now, self._loads_end) + loaded / self._rate
        self._planned = MoveTotals(
            before.load_bytes + loaded,
            before.load_seconds + loaded / self._rate,
            before.store_bytes + stored,
            before.store_seconds + stored / self._rate,
        )
        ends_at = max(self._stores_end if saves else now, self._loads_end if loads else now)
        ends_at = max(ends_at, device_free)
        if self._under_way:  # calls end in their order
            ends_at = max(ends_at, self._under_way[-1].ends_at)
        self._under_way.append(_Copy(number, ends_at, self._planned))

    def moved_number(self) -> int:
        """Return the number of the last call whose time is over."""
        while self._under_way and self._under_way[0].ends_at <= self._clock.now:
            done = self._under_way.popleft()
            self._moved, self._totals = done.number, done.totals
        return self._moved

    def move_totals(self) -> MoveTotals:
        """Return the totals of the calls whose time is over."""
        return self._totals

    def spoiled_rows(self, number: int, rows: Iterable[int]) -> set[int]:
        """Return none: virtual pages are not damaged."""
        return set()

    def wait_moved(self, number: int) -> None:
        """Move the clock to the end of a call."""
        for each in self._under_way:
            if each.number <= number:
                self._clock.advance_to(each.ends_at)

    def _bytes(self, moves: list[Move]) -> int:
        pages = sum(move.row < self._host.num_pages for move in moves)
        states = len(moves) - pages
        return pages * self._host.page_bytes + states * self._host.state_bytes
