"""MovedPages: moves pages on every rank by a control call, and reads their progress here.

The ranks note their progress in the memory that they share, so a move has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from atom.model_engine.control import MovePages, RankControl
from atom.model_engine.page_moves import HostRows, Move, MoveTotals
from atom.model_engine.runner.pages.host_tier import RankTier


class MovedPages:
    """The PageMover of a copy of the model. tier: of the rank in this process; control: carries a
    call out on every rank."""

    def __init__(self, tier: RankTier, control: Callable[[RankControl[Any]], None]) -> None:
        self._tier, self._control = tier, control

    @property
    def rows(self) -> HostRows:
        """Return the rows of the host's memory, as pages of all ranks."""
        return self._tier.rows

    @property
    def tensors(self) -> Sequence[str]:
        """Describe a page of each kind, the same for every number of ranks."""
        return self._tier.tensors

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        self._control(MovePages(number, list(saves), list(loads)))

    def moved_number(self) -> int:
        return self._tier.moved_number

    def move_totals(self) -> MoveTotals:
        return self._tier.totals

    def spoiled_rows(self, number: int, rows: Iterable[int]) -> set[int]:
        return self._tier.spoiled_rows(number, rows)

    def wait_moved(self, number: int) -> None:
        self._tier.wait_moved(number)
