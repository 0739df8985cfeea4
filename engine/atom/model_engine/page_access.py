"""PageAccess: how pages of blocks are read from the KV cache and written to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

_AITER = "aiter"  # whose attention has an order of its own within a block


class PageAccess(Protocol):
    """The KV cache of one engine, as canonical pages. A page is the bytes of one block of one group
    of layers, for all heads, whatever the number of ranks. Checkpoints of states are the blocks of
    one more group, behind the last."""

    @property
    def copies_beside_steps(self) -> bool:
        """Return whether other threads may call `read` and `write`, which then copy beside the
        steps; else the engine core's thread calls them between two steps. Either returns when the
        bytes are copied."""
        ...

    def tensors(self) -> list[str]:
        """Describe a page of each group: its layers, and the shapes of its parts in their order."""
        ...

    def page_bytes(self, group: int) -> int:
        """Return the size of a page of this group."""
        ...

    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        """Return the pages of blocks, in this order."""
        ...

    def submitted_steps(self) -> object | None:
        """Return a mark of the steps that were submitted so far, from the engine core's thread: a
        row that has ended may have a step under way that writes to the blocks that it has freed.
        None if `write` is ordered behind them anyway."""
        ...

    def write(
        self,
        group: int,
        block_ids: Sequence[int],
        pages: Sequence[bytes | memoryview],
        after: object | None = None,
    ) -> None:
        """Fill blocks with pages. after: the steps that end first, as `submitted_steps` marks
        them."""
        ...


def stores_heads_first(backends: Mapping[str, str]) -> bool:
    """Return whether a block is stored head by head, and not token by token. backends: the chosen
    one of each operation."""
    return any("attention" in op and name == _AITER for op, name in backends.items())
