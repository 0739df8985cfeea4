"""PageAccess: how pages of blocks are read from the KV cache and written to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PageAccess(Protocol):
    """The KV cache of one engine, as canonical pages. A page is the bytes of one block of one group
    of layers, for all heads, whatever the number of ranks."""

    def tensors(self) -> list[str]:
        """Describe the parts of a page of each group, in their order."""
        ...

    def page_bytes(self, group: int) -> int:
        """Return the size of a page of this group."""
        ...

    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        """Return the pages of blocks, in this order."""
        ...

    def write(
        self, group: int, block_ids: Sequence[int], pages: Sequence[bytes | memoryview]
    ) -> None:
        """Fill blocks with pages."""
        ...
