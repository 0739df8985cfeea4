"""ImageOutputs: which images' outputs the device keeps, and in which rows of its buffer.

Rows are handed out one by one, so no space is lost between images. The outputs of images that no
row needs now stay until their room is needed, the longest unused first. Used by ImageSteps only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class _Kept:
    rows: NDArray[np.int32]
    users: int = 0


class ImageOutputs:
    def __init__(self, count: int) -> None:
        self._free = np.arange(count, dtype=np.int32)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the longest unused first

    def find(self, digest: bytes) -> NDArray[np.int32] | None:
        """Return the rows [tokens] of an image; None if its outputs are not kept."""
        kept = self._kept.get(digest)
        return None if kept is None else kept.rows

    def reserve(self, digest: bytes, tokens: int) -> NDArray[np.int32] | None:
        """Take rows for an image that is not kept, evicting images that no row uses; None if too
        few of these are left."""
        evictable = sum(len(kept.rows) for kept in self._kept.values() if not kept.users)
        if tokens > len(self._free) + evictable:
            return None
        for other in [key for key, kept in self._kept.items() if not kept.users]:
            if tokens <= len(self._free):
                break
            self.forget(other)
        rows, self._free = self._free[:tokens], self._free[tokens:]
        self._kept[digest] = _Kept(rows)
        return rows

    def hold(self, digest: bytes) -> None:
        """Keep an image's outputs for one more row."""
        self._kept[digest].users += 1

    def release(self, digest: bytes) -> None:
        """Count a row less that needs an image; forgotten outputs have no row."""
        kept = self._kept.get(digest)
        if kept is not None:
            kept.users -= 1
            self._kept.move_to_end(digest)

    def forget(self, digest: bytes) -> None:
        """Give back the rows of an image."""
        kept = self._kept.pop(digest, None)
        if kept is not None:
            self._free = np.concatenate((self._free, kept.rows))

    def forget_all(self) -> None:
        """Give back all rows: the encoder has changed, or the buffer's memory."""
        for digest in list(self._kept):
            self.forget(digest)
