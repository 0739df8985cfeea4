"""HostMemory: the pages of one copy of a model in the host's memory, shared by its ranks.

Every rank of a group writes its part of a page into the same row, rank after rank, and notes its
checksum, and how far it has got, beside the rows. So the core's process sees the progress of all
ranks without a message. Memory without a name (atom.utils.unnamed_memory): it is gone with the
processes. Rows of states follow those of blocks and have another size.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from numpy.typing import NDArray

from atom.sizing.host_tier import HostTier

_LINE = 8  # numbers of a rank, on a cache line of its own
_NUMBER, _LOAD_BYTES, _LOAD_NS, _STORE_BYTES, _STORE_NS = range(5)


class HostMemory:
    """The memory as one rank maps it. pages [num_pages, page_bytes] and states [num_states,
    state_bytes]: uint8, the rank's own part of each row; sums [num_rows]: uint64, their
    checksums."""

    def __init__(self, descriptor: int, shape: HostTier, rank: int) -> None:
        """descriptor: of unnamed memory, of any size; every rank gives it the same one."""
        self.shape, self.rank = shape, rank
        ranks, num_rows = shape.ranks, shape.num_pages + shape.num_states
        lines, numbers = ranks * _LINE, 2 * ranks * num_rows
        first = -(-8 * (lines + numbers) // mmap.PAGESIZE) * mmap.PAGESIZE
        # Every rank does this: which one is first does not matter.
        os.ftruncate(descriptor, first + shape.size_bytes)
        mapped = mmap.mmap(descriptor, first + shape.size_bytes)
        self.mapped = np.frombuffer(mapped, dtype=np.uint8)
        notes = self.mapped[:first].view(np.int64)
        self._progress = notes[:lines].reshape(ranks, _LINE)
        sums, spoiled = notes[lines : lines + numbers].reshape(2, ranks * num_rows)
        self._all_sums: NDArray[np.uint64] = sums.view(np.uint64).reshape(num_rows, ranks)
        self.sums = self._all_sums[:, rank]
        self._spoiled = spoiled.reshape(ranks, num_rows)
        self._progress[rank] = 0
        self._spoiled[rank] = 0
        self._pages_begin = first
        self.pages = self._part(first, shape.num_pages, shape.page_bytes)
        first += shape.num_pages * ranks * shape.page_bytes
        self._states_begin = first
        self.states = self._part(first, shape.num_states, shape.state_bytes)

    def _part(self, first: int, rows: int, size: int) -> torch.Tensor:
        whole = self.mapped[first : first + rows * self.shape.ranks * size]
        return torch.from_numpy(whole.reshape(rows, self.shape.ranks, size)[:, self.rank])

    def sums_of_ranks(self, row: int) -> NDArray[np.uint64]:
        """Return the checksums [ranks] of a row, as each rank noted its own part's."""
        found: NDArray[np.uint64] = self._all_sums[row]
        return found

    def parts_of_ranks(self, row: int) -> torch.Tensor:
        """Return a row, uint8 [ranks, bytes]: each rank's part."""
        shape, begin, at, size = self.shape, self._pages_begin, row, self.shape.page_bytes
        if row >= shape.num_pages:
            begin, at, size = self._states_begin, row - shape.num_pages, shape.state_bytes
        first = begin + at * shape.ranks * size
        whole = self.mapped[first : first + shape.ranks * size]
        return torch.from_numpy(whole.reshape(shape.ranks, size))

    # ---- progress ------------------------------------------------------------------------------

    def finish(self, number: int) -> None:
        """Note that this rank has carried out the moves of a call."""
        self._progress[self.rank, _NUMBER] = number

    def count(self, *, loaded: int = 0, stored: int = 0, seconds: float = 0.0) -> None:
        """Count the bytes that this rank has copied, in one direction."""
        own, nanoseconds = self._progress[self.rank], int(seconds * 1e9)
        if loaded:
            own[_LOAD_BYTES] += loaded
            own[_LOAD_NS] += nanoseconds
        else:
            own[_STORE_BYTES] += stored
            own[_STORE_NS] += nanoseconds

    def spoil(self, row: int, number: int) -> None:
        """Note that a row had another checksum than it was written with, in this call."""
        self._spoiled[self.rank, row] = number

    @property
    def finished(self) -> int:
        """Return the last call that every rank has carried out."""
        return int(self._progress[:, _NUMBER].min())

    def spoiled_at(self, row: int) -> int:
        """Return the last call in which a rank found this row spoiled; 0 for none."""
        return int(self._spoiled[:, row].max())

    @property
    def totals(self) -> tuple[int, float, int, float]:
        """Return this rank's bytes and seconds of loads, and of stores."""
        own = self._progress[self.rank].tolist()
        return own[_LOAD_BYTES], own[_LOAD_NS] / 1e9, own[_STORE_BYTES], own[_STORE_NS] / 1e9
