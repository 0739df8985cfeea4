"""BlockContents: what each block was published with, as the proof that a hash found the right one.

A block's proof is the chain's hash before it and its tokens. Kept as arrays, written and compared
for many blocks at a time: an object per block would be a cache miss each to make and to forget.
Knows neither which blocks are findable nor who holds them. Owned by BlockPool.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockContents:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        # Each twice: to be written one by one, and by many at a time, through numpy.
        self._parent_items = array("Q", bytes(8 * num_blocks))
        self._parents = np.frombuffer(self._parent_items, np.uint64)
        self._tokens = np.zeros((num_blocks, block_size), dtype=np.int32)
        self._token_bytes = self._tokens.reshape(-1).data.cast("B")
        self._block_bytes = 4 * block_size

    def put(self, block_id: int, parent: int, packed: bytes) -> None:
        """parent: the hash before the block; packed: its tokens as int32."""
        start = block_id * self._block_bytes
        self._parent_items[block_id] = parent
        self._token_bytes[start : start + self._block_bytes] = packed

    def put_all(
        self, block_ids: Sequence[int], parents: Sequence[int], tokens: NDArray[np.int32]
    ) -> None:
        """The same of many; tokens [blocks, block_size]."""
        at = np.fromiter(block_ids, np.intp, len(block_ids))
        self._parents[at] = _hashes(parents)
        self._tokens[at] = tokens

    def count_equal(self, block_ids: Sequence[int], parents: Sequence[int], packed: bytes) -> int:
        """How many of the blocks hold this, up to the first that does not. packed: tokens as int32,
        of at least these blocks."""
        count = len(block_ids)
        at = np.fromiter(block_ids, np.intp, count)
        own, asked = self._tokens[at], packed[: count * self._block_bytes]
        same = self._parents[at] == _hashes(parents)
        if own.tobytes() != asked:
            same &= (own == np.frombuffer(asked, np.int32).reshape(own.shape)).all(axis=1)
        return count if same.all() else int(same.argmin())


def _hashes(numbers: Sequence[int]) -> NDArray[np.uint64]:
    """numpy itself is slow to make them of numbers above 2^63."""
    return np.frombuffer(array("Q", numbers), np.uint64)
