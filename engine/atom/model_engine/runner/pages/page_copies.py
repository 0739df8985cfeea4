"""PageCopies: the moves of one rank on the CPU, where the copies are made in the call.

Every page gets a checksum when it is written, and is compared with it when it is read. On a GPU
DeviceCopies makes the same moves beside the steps. Used by RankTier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from atom.model_engine.page_moves import Move
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.page_rows import PageRows, batches
from atom.model_ops.backends.page_ops import PageOps
from atom.model_ops.page_table import PageTable

_AT_ONCE = 64  # pages that are copied together, through a buffer
Clock = Callable[[], float]


class Copies(Protocol):
    """Carries out the moves of a rank."""

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        """Begin to carry out the moves of a call."""
        ...

    def close(self) -> None:
        """Carry out the moves that were called, and stop."""
        ...


class PageCopies:
    """Copies in the call itself."""

    def __init__(
        self, tables: Sequence[PageTable], memory: HostMemory, ops: PageOps, clock: Clock
    ) -> None:
        """tables: of each kind of pages; clock: in seconds."""
        self._tables, self._rows = tables, PageRows(memory)
        self._memory, self._ops, self._clock = memory, ops, clock

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        began = self._clock()
        stored = sum([self._save(batch) for batch in batches(saves, _AT_ONCE)])
        middle = self._clock()
        loaded = sum([self._load(number, batch) for batch in batches(loads, _AT_ONCE)])
        if stored:
            self._memory.count(stored=stored, seconds=middle - began)
        if loaded:
            self._memory.count(loaded=loaded, seconds=self._clock() - middle)
        self._memory.finish(number)

    def close(self) -> None:
        pass

    def _save(self, batch: Sequence[Move]) -> int:
        table, pages = self._buffer(batch)
        self._rows.void(batch)
        self._ops.read_pages(table, _blocks(batch), pages)
        self._rows.put(batch, pages)
        self._rows.note(batch, self._rows.sums_of(batch, table.page_bytes))
        return pages.nbytes

    def _load(self, number: int, batch: Sequence[Move]) -> int:
        table, pages = self._buffer(batch)
        self._rows.check(number, batch, self._rows.sums_of(batch, table.page_bytes))
        self._rows.get(batch, pages)
        self._ops.write_pages(table, _blocks(batch), pages)
        return pages.nbytes

    def _buffer(self, batch: Sequence[Move]) -> tuple[PageTable, torch.Tensor]:
        table = self._tables[batch[0].kind]
        return table, torch.empty(len(batch), table.page_bytes, dtype=torch.uint8)


def _blocks(moves: Sequence[Move]) -> torch.Tensor:
    return torch.tensor([move.block for move in moves], dtype=torch.int64)
