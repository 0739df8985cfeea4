"""SharedPages: memory through which the ranks of one model put pages of all heads together.

Each rank copies the slices of its own heads and counts the calls that it has carried out beside the
pages, so the leader sees the progress of all ranks without a message. Memory without a name
(atom.utils.unnamed_memory): it is gone with the processes. One call uses the memory at a time.
"""

from __future__ import annotations

import mmap
import os
import time

import numpy as np
import torch

_LINE = 8  # numbers of a rank, on a cache line of its own
_AREA_BYTES = 16 << 20
_POLL_SECONDS = 0.0001


class SharedPages:
    """The memory as one rank maps it."""

    def __init__(self, descriptor: int, rank: int, ranks: int, page_bytes: int) -> None:
        """descriptor: of unnamed memory, of any size; every rank gives it the same one.
        page_bytes: of the largest page."""
        first = -(-ranks * _LINE * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        self._area_bytes = max(_AREA_BYTES, page_bytes)
        size = first + self._area_bytes
        os.ftruncate(descriptor, size)  # every rank does this: which one is first does not matter
        mapped = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
        self._counters = mapped[: ranks * _LINE * 8].view(np.int64).reshape(ranks, _LINE)[:, 0]
        self._area = torch.from_numpy(mapped[first:])
        self._rank = rank
        if rank == 0:  # before it calls the others, which map the memory in their first call
            self._counters[:] = 0

    def most_rows(self, page_bytes: int) -> int:
        """Return how many pages fit."""
        return self._area_bytes // page_bytes

    def rows(self, count: int, page_bytes: int) -> torch.Tensor:
        """View the first rows of the memory as pages [count, page_bytes], uint8."""
        return self._area[: count * page_bytes].view(count, page_bytes)

    def finish(self, number: int) -> None:
        """Note that this rank has carried out a call."""
        self._counters[self._rank] = number

    def wait(self, number: int) -> None:
        """Wait until every rank has carried out the calls up to this one. A rank that is lost ends
        the process."""
        while self._counters.min() < number:
            time.sleep(_POLL_SECONDS)
