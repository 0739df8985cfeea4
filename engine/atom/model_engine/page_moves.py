"""Moves of pages between the device and the host's memory, and who carries them out.

Values alone. KVTiers decides the moves; the runner of each rank carries them out in order, between
the steps that were submitted before and after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class HostRows(Protocol):
    """The rows of the host's memory, as pages of all ranks. Threads may call it, each for other
    rows. kind: as in Move."""

    def page_bytes(self, kind: int) -> int:
        """Return the size of a page."""
        ...

    def page(self, kind: int, row: int) -> memoryview | None:
        """Return the page in a row, until this thread asks for the next one; None if the row has
        been damaged since the ranks filled it."""
        ...

    def buffer(self, kind: int, row: int) -> memoryview:
        """Return memory for the page that a row is to get. The row is void until `fill`."""
        ...

    def fill(self, kind: int, row: int) -> None:
        """Let a row have the page that this thread has written to its `buffer`."""
        ...


class Move(NamedTuple):
    """A page between a block and a row of the host's memory. kind: the group of layers, or the
    number of groups for a checkpoint of states, whose number is `block` then. row: the rows of
    states follow those of blocks."""

    kind: int
    block: int
    row: int


class MoveTotals(NamedTuple):
    """Bytes and seconds of the copies so far, of the rank in this process."""

    load_bytes: int = 0
    load_seconds: float = 0.0
    store_bytes: int = 0
    store_seconds: float = 0.0


class PageMover(Protocol):
    """Carries moves out on every rank that shares the model."""

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        """Begin to copy blocks to rows (`saves`), and rows to blocks (`loads`), which may be those
        of saves. No row is written and read at once. number: of the call, from 1 on. Returns at
        once or, without a device, when the copies are made."""
        ...

    def moved_number(self) -> int:
        """Return the number of the last call that every rank has carried out, without waiting."""
        ...

    def move_totals(self) -> MoveTotals:
        """Return the totals of the calls that were carried out."""
        ...

    def spoiled_rows(self, number: int, rows: Iterable[int]) -> set[int]:
        """Return which of these rows a rank has read, in this call or later, with another checksum
        than it had written them with."""
        ...

    def wait_moved(self, number: int) -> None:
        """Wait until every rank has carried out the calls up to this one."""
        ...


class HostPageMover(PageMover, Protocol):
    """A mover whose rows other threads of this process may read and fill."""

    @property
    def rows(self) -> HostRows:
        """Return the rows of the host's memory, as pages of all ranks."""
        ...

    @property
    def tensors(self) -> Sequence[str]:
        """Describe a page of each kind, the same for every number of ranks."""
        ...
