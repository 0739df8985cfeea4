"""AdapterBlocks: which adapter computed each cached block, so that the blocks go with the adapter.

Knows block ids and adapters' numbers; no hashes, sequences or tensors. An entry counts only while
the pool can find its block by content. A number is never given to another adapter. Called by
BlockManager only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BASE = 0  # adapters are numbered from 1


class AdapterBlocks:
    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._numbers: NDArray[np.int64] | None = None  # by block, once an adapter computed one
        self._retired: set[int] = set()

    @property
    def are_known(self) -> bool:
        """Return whether an adapter has computed a block."""
        return self._numbers is not None

    def note(self, block_ids: Sequence[int], number: int | None) -> None:
        """Note which adapter computed these blocks. number: None for the model alone."""
        if self._numbers is None:
            if number is None:
                return
            self._numbers = np.full(self._num_blocks, _BASE, np.int64)
        self._numbers[block_ids] = _BASE if number is None else number

    def number_of(self, block_id: int) -> int | None:
        """Return the number of the adapter that computed a block last; None for the model
        alone."""
        if self._numbers is None:
            return None
        return int(self._numbers[block_id]) or None

    def retire(self, number: int) -> list[int]:
        """Take no more blocks of an adapter, whose requests may still run; return the blocks that
        it computed last, whether or not they can be found."""
        self._retired.add(number)
        if self._numbers is None:
            return []
        block_ids: list[int] = np.flatnonzero(self._numbers == number).tolist()
        return block_ids

    def is_retired(self, number: int | None) -> bool:
        """Return whether blocks that the adapter computes must not be found any more."""
        return number in self._retired

    def forget(self, number: int) -> None:
        """Forget a retired adapter, no request of which is open."""
        self._retired.discard(number)
