"""Moves of pages between rows of the host's memory and files, and the store that carries them out.

Values alone, as page_moves has for the device. KVTiers decides the moves; a store's threads carry
them out, and no step waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from atom.model_engine.kv_disk.page_names import PageNames


class FileMove(NamedTuple):
    """A page between a row of the host's memory and the file of its name. kind: as in Move; tokens:
    of the block."""

    name: bytes
    row: int
    kind: int
    tokens: int


class FilesMoved(NamedTuple):
    """The end of a call. whole: of each of its moves, whether the file or the row has the page now;
    is_late: the store still works on it, and tells the true end later."""

    number: int
    whole: list[bool]
    is_late: bool = False


class DiskTotals(NamedTuple):
    """The totals of a store. pages, used_bytes, size_bytes: of all files; errors: by kind."""

    pages: int
    used_bytes: int
    size_bytes: int
    load_bytes: int
    load_seconds: float
    store_bytes: int
    store_seconds: float
    errors: tuple[tuple[str, int], ...]


class DiskStore(Protocol):
    """Keeps pages in files. Nothing here waits, but `wait` and `close`."""

    @property
    def names(self) -> PageNames:
        """Return the names of pages; a page without one is not kept in files."""
        ...

    @property
    def wake_fd(self) -> int:
        """Return the descriptor that is readable when `take_moved` has an end."""
        ...

    @property
    def is_off(self) -> bool:
        """Return whether a fault has switched the store off for now."""
        ...

    @property
    def has_moved(self) -> bool:
        """Return whether `take_moved` has an end."""
        ...

    def holds(self, name: bytes) -> bool:
        """Return whether a page is believed to be there; False while the store is switched off."""
        ...

    def retarget(self, weights: str) -> None:
        """Keep pages of other weights from now on. weights: the path of a checkpoint."""
        ...

    def write(self, number: int, moves: Sequence[FileMove]) -> None:
        """Begin to write rows to files. number: of the call, different from those under way."""
        ...

    def read(self, number: int, moves: Sequence[FileMove]) -> None:
        """Begin to read files into rows."""
        ...

    def forget(self, names: Sequence[bytes]) -> None:
        """Remove pages that are wrong."""
        ...

    def clear(self) -> None:
        """Remove all pages of this layout, also of other servers."""
        ...

    def take_moved(self) -> list[FilesMoved]:
        """Return the calls that have ended."""
        ...

    def take_gone(self) -> list[bytes]:
        """Return the names of pages that are no longer there."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the reads under way."""
        ...

    def totals(self) -> DiskTotals:
        """Return the totals so far."""
        ...

    def close(self) -> None:
        """Complete the writes that were begun, and stop."""
        ...

    def wait(self) -> None:
        """Wait until `take_moved` has an end. Calls must be under way."""
        ...
