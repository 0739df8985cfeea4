"""PagedMover: moves pages between a PagedModel's cache and rows of a host's memory without bytes.

A row keeps what the block's places of the cache held. Moves are carried out when they are called,
as a device does in the order of its stream, and are reported as complete after a number of steps. A
row may be spoiled, as if its checksum were wrong; its block then gets what no row of a model has.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from atom.model_engine.page_moves import Move, MoveTotals
from tests.support.engine_core.paged_model import PagedModel

_SPOILED = -1


@dataclass
class PagedMover:
    """steps: between the call of moves and their completion, at most; spoiled_share: of rows that
    are read; page_seconds: that reading one takes, as it is reported."""

    steps: int = 0
    spoiled_share: float = 0.0
    page_seconds: float = 0.0
    seed: int = 0
    model: PagedModel | None = None
    rows: dict[int, list[int]] = field(default_factory=dict)
    saved: int = 0
    loaded: int = 0
    spoiled_total: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._pending: deque[tuple[int, int]] = deque()  # number, steps that are left
        self._spoiled: dict[int, int] = {}
        self._number = 0

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        assert self.model is not None
        cache, size = self.model.cache, self.model.block_size
        for _, block, row in saves:
            self.rows[row] = cache[block * size : (block + 1) * size]
        for _, block, row in loads:
            content = self.rows[row]
            if self._draw.random() < self.spoiled_share:
                content = [_SPOILED] * size
                self._spoiled[row] = number
                self.spoiled_total += 1
            cache[block * size : (block + 1) * size] = content
        self.saved += len(saves)
        self.loaded += len(loads)
        self._pending.append((number, self._draw.randint(0, self.steps)))
        self._settle()

    def moved_number(self) -> int:
        self.tick()
        return self._number

    def move_totals(self) -> MoveTotals:
        return MoveTotals(self.loaded, self.loaded * self.page_seconds, self.saved)

    def spoiled_rows(self, number: int, rows: Iterable[int]) -> set[int]:
        return {row for row in rows if self._spoiled.get(row, 0) >= number}

    def wait_moved(self, number: int) -> None:
        while self._number < number:
            self.tick()

    def tick(self) -> None:
        """Let a step pass."""
        if self._pending:
            number, left = self._pending[0]
            self._pending[0] = number, left - 1
            self._settle()

    def _settle(self) -> None:
        while self._pending and self._pending[0][1] <= 0:
            self._number, _ = self._pending.popleft()
