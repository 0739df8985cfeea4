"""PageSums: the checksums of a rank's rows, computed on the host.

Ranks on the CPU note xxh3 of their rows. Ranks on a GPU note the sum that the copying kernel
computes, since the host would be slower than the bus; files are slower than the bus, so their
readers and writers compute the same sum here (`torch_ref/pages.py` is its definition). Used by
FileRows, from threads that release the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from atom.model_ops.page_table import MIX, PLACE

_MODULUS = 1 << 64
_CHUNK = 8192  # words that are summed up together: their copies stay in a core's cache
_WORDS: dict[int, np.dtype[Any]] = {
    width: np.dtype(kind) for width, kind in ((8, np.int64), (4, np.int32), (1, np.uint8))
}


class PageSums(Protocol):
    """Computes the checksum that a rank notes of its part of a row."""

    def of(self, kind: int, part: NDArray[np.uint8]) -> int:
        """Return the checksum of a part of a page of this kind."""
        ...


class HostSums:
    """The checksums of ranks on the CPU."""

    def of(self, kind: int, part: NDArray[np.uint8]) -> int:
        return xxhash.xxh3_64_intdigest(part.data)


class DeviceSums:
    """The checksums of ranks on a GPU. widths: bytes of a word of each kind of pages."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = widths
        places = np.arange(1, _CHUNK + 1, dtype=np.uint64)
        self._places = places * np.uint64(PLACE % _MODULUS)
        self._factors = [np.uint64(factor % _MODULUS) for factor in MIX]

    def of(self, kind: int, part: NDArray[np.uint8]) -> int:
        words, total = part.view(_WORDS[self._widths[kind]]), 0
        for first in range(0, len(words), _CHUNK):
            chunk = words[first : first + _CHUNK].astype(np.int64).view(np.uint64)
            chunk += self._places[: len(chunk)]
            chunk += np.uint64(first * PLACE % _MODULUS)
            for factor in self._factors:
                chunk ^= chunk >> np.uint64(33)
                chunk *= factor
            chunk ^= chunk >> np.uint64(33)
            total += int(chunk.sum(dtype=np.uint64))
        return total % _MODULUS
