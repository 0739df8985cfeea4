"""CountedFile: a client's file that refuses to be read in too many pieces.

A picture's decoder reads a header block by block, and joins some of them: thousands of tiny blocks,
comments or chunks of a file of a few megabytes cost it seconds. The pieces are counted, and so are
the bytes that are copied if each piece is appended to all before it. Knows no formats.
"""

from __future__ import annotations

import io

from atom.images.errors import ImageError

MOST_PIECES = 100_000  # of the header, and again of the pixels
MOST_COPIED_BYTES = 2 << 30  # in a header, if its pieces are joined one by one


class CountedFile(io.BytesIO):
    """A file in memory. Reads raise `ImageError` past the bounds."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._pieces = self._read_bytes = 0
        self._copied_bytes: int | None = 0

    def end_header(self) -> None:
        """Count anew: what follows is read in large pieces, which no decoder joins."""
        self._pieces, self._copied_bytes = 0, None

    def read(self, size: int | None = -1, /) -> bytes:
        """Read and count a piece."""
        found = super().read(size)
        self._pieces += 1
        if self._copied_bytes is not None:
            self._read_bytes += len(found)
            self._copied_bytes += self._read_bytes
        if self._pieces > MOST_PIECES or (self._copied_bytes or 0) > MOST_COPIED_BYTES:
            raise ImageError(
                "the file has too many small parts to be read in time; save it again as a plain "
                "PNG or JPEG"
            )
        return found
