"""PageAccess: how pages of blocks are read from the KV cache and written to it.

DeviceMemory: the memory of a device that two engines of one host both reach, for pages that never
leave their devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_AITER = "aiter"  # whose attention has an order of its own within a block


@dataclass(frozen=True, slots=True)
class DevicePage:
    """A page in the memory of a device. sum: its checksum, which the copying kernel computed; held:
    keeps the memory."""

    address: int
    size: int
    sum: bytes
    held: Any

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DeviceRange:
    """Memory of a device that another process reaches by a handle."""

    address: int
    size: int
    handle: bytes


PageContent = bytes | memoryview | DevicePage


class DeviceMemory(Protocol):
    """Memory of this engine's device for engines of the same host. Any thread may call it."""

    @property
    def kind(self) -> str:
        """Return the facts that both devices share: their runtime, and how checksums are
        computed."""
        ...

    @property
    def device_name(self) -> str:
        """Return the name of this device, which is unique."""
        ...

    def offer(self, size: int) -> DeviceRange:
        """Allocate memory that others may read. Raises `OSError`."""
        ...

    def withdraw(self, offered: DeviceRange) -> None:
        """Take memory back, which is offered to another engine later."""
        ...

    def open(self, handle: bytes, size: int) -> DeviceRange:
        """Map another engine's memory, until nothing refers to the result. Raises `OSError`."""
        ...

    def copy(self, to: int, page: DevicePage) -> None:
        """Copy a page to an address of this device; returns when it is copied. Raises `OSError`."""
        ...

    def read(self, group: int, block_ids: Sequence[int]) -> list[DevicePage]:
        """Return the pages of blocks, in this order."""
        ...

    def write(
        self, group: int, block_ids: Sequence[int], pages: Sequence[DevicePage], after: object
    ) -> list[bool]:
        """Fill blocks with pages; returns which of them agree with their checksums. after: the
        steps that end first."""
        ...


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

    @property
    def device_memory(self) -> DeviceMemory | None:
        """Return the way by which pages stay on devices; None without one."""
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
