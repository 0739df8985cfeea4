"""MaskArena: the memory that matcher processes write masks to and the engine core reads them from.

One row of bits per guided sequence, in anonymous memory that the compile server's children share by
its descriptor: pages that no sequence has used yet cost nothing. Owned by MatcherPool, which
decides who writes to a slot and when it is free again.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

SLOTS = 2048


class MaskArena:
    """Hold the memory that matcher processes write masks to. rows: int32 [SLOTS, ceil(vocab_size /
    32)]; fd: the descriptor by which other processes map it."""

    def __init__(self, vocab_size: int) -> None:
        self.fd = os.memfd_create("atom-masks")
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, _size_bytes(vocab_size))
        self.rows = map_masks(self.fd, vocab_size)
        self._free = list(range(SLOTS - 1, -1, -1))

    def take(self) -> int | None:
        """Reserve a slot; None if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Free a slot that no process writes to any more."""
        self._free.append(slot)

    @property
    def num_free(self) -> int:
        return len(self._free)


def map_masks(fd: int, vocab_size: int) -> NDArray[np.int32]:
    """Return the arena's rows, in any process that has its descriptor."""
    memory = mmap.mmap(fd, _size_bytes(vocab_size))
    return np.frombuffer(memory, dtype=np.int32).reshape(SLOTS, -1)


def _size_bytes(vocab_size: int) -> int:
    return SLOTS * -(-vocab_size // 32) * 4
