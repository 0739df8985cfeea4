"""PageRows: a rank's rows of the host's memory, as the copies of pages fill and read them.

Each row has a checksum of 64 bits from the moment that it is written: xxh3 on the CPU, and on a GPU
that of the kernel which copies it, since the host would be slower than the bus. Moves and batches
are of one kind of pages. Used by PageCopies and DeviceCopies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
import torch
import xxhash

from atom.model_engine.page_moves import Move
from atom.model_engine.runner.pages.host_memory import HostMemory


class PageRows:
    """A rank's rows of the host's memory, and their checksums."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._num_pages = memory.shape.num_pages

    def put(self, moves: Sequence[Move], pages: torch.Tensor) -> None:
        """Copy pages [n, page_bytes], of one kind, into their rows."""
        rows, index = self._all(moves)
        rows[:, : pages.shape[1]].index_copy_(0, index, pages)

    def get(self, moves: Sequence[Move], pages: torch.Tensor) -> None:
        """Copy rows, of one kind, to pages [n, page_bytes]."""
        rows, index = self._all(moves)
        pages.copy_(rows[:, : pages.shape[1]].index_select(0, index))

    def _all(self, moves: Sequence[Move]) -> tuple[torch.Tensor, torch.Tensor]:
        first = 0 if moves[0].row < self._num_pages else self._num_pages
        index = torch.tensor([move.row - first for move in moves], dtype=torch.int64)
        return self._memory.states if first else self._memory.pages, index

    def runs(
        self, moves: Sequence[Move], pages: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield rows and pages [n, page_bytes] of one kind that are each one piece of memory: of
        rows that follow one another and that pages fill."""
        rows, index = self._all(moves)
        size, numbers = pages.shape[1], index.tolist()
        is_whole = rows.is_contiguous() and rows.shape[1] == size and pages.is_contiguous()
        first = 0
        for at in range(1, len(numbers) + 1):
            if at < len(numbers) and is_whole and numbers[at] == numbers[at - 1] + 1:
                continue
            row = numbers[first]
            yield rows[row : row + at - first, :size], pages[first:at]
            first = at

    def void(self, moves: Sequence[Move]) -> None:
        """Drop the checksums of rows that are about to be written: if that fails, the pages that
        were in them before are not taken for the new ones."""
        for move in moves:
            self._memory.sums[move.row] = 0

    def note(self, moves: Sequence[Move], sums: torch.Tensor) -> None:
        """Note the checksums [n] int64 of rows that were written."""
        self._memory.sums[[move.row for move in moves]] = sums.numpy().view(np.uint64)

    def check(self, number: int, moves: Sequence[Move], sums: torch.Tensor) -> None:
        """Note which rows of a call have other checksums [n] int64 now."""
        noted = self._memory.sums[[move.row for move in moves]]
        for at in np.flatnonzero(noted != sums.numpy().view(np.uint64)).tolist():
            self._memory.spoil(moves[at].row, number)

    def sums_of(self, moves: Sequence[Move], size: int) -> torch.Tensor:
        """Compute the checksums [n] int64 of rows. size: of their pages, in bytes."""
        sums = np.array([self._sum(move.row, size) for move in moves], dtype=np.uint64)
        return torch.from_numpy(sums.view(np.int64))

    def _sum(self, row: int, size: int) -> int:
        pages = self._memory.pages
        whole = pages[row] if row < self._num_pages else self._memory.states[row - self._num_pages]
        return xxhash.xxh3_64_intdigest(whole[:size].numpy().data)


def batches(moves: Sequence[Move], most: int) -> Iterator[list[Move]]:
    """Yield moves of one kind that follow one another, at most so many at once."""
    for _, group in groupby(moves, itemgetter(0)):
        while batch := list(islice(group, most)):
            yield batch
