"""Proofs that two engines mean the same tokens by the same block of a prompt.

A ticket is read by the index of a block. The hash that goes with it covers all tokens up to the
block's end, the salt, the files of an adapter, and the digest of the cache layout, so a producer
that restarted or reused its numbers cannot send pages of another prompt.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.model_engine.kv_transfer.frames import HASH_BYTES


def prefix_hashes(
    tokens: NDArray[np.int32], block_size: int, salt: str, layout: str, adapter: str = ""
) -> bytes:
    """Return the hash up to the end of each whole block of `tokens`, 8 bytes each. adapter: the
    digest of its files, empty for the model alone."""
    chain = xxhash.xxh64_intdigest(salt.encode(), xxhash.xxh64_intdigest(layout.encode()))
    if adapter:
        chain = xxhash.xxh64_intdigest(adapter.encode(), chain)
    packed, size = tokens.astype("<i4", copy=False).tobytes(), 4 * block_size
    hashes = bytearray()
    for first in range(0, len(packed) // size * size, size):
        chain = xxhash.xxh64_intdigest(packed[first : first + size], chain)
        hashes += chain.to_bytes(HASH_BYTES, "little")
    return bytes(hashes)
