"""PageRing and PageWindow: the ends of memory through which pages reach a consumer.

The producer writes pages one after another into memory of a fixed size: of the host, which has no
name and is sealed, so a consumer that maps it never finds it shorter, or of its device. A position
counts all bytes ever placed; its remainder by the size is the place in the memory. The consumer
reports how far it has used the pages, and only places before that are written again. Nothing is
left of the memory when both processes end, however they end. Belong to the side channel's thread.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from atom.model_engine.kv_transfer.frames import FrameError
from atom.model_engine.page_access import DeviceMemory, DevicePage, DeviceRange, PageContent

_LEAST_BYTES = 64 * 2**20
_PAGES = 4  # that fit at least
_SEALS = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


def host_identity() -> str:
    """Return the name of this host and of its network, which processes share if they can pass
    memory to each other; empty if this system has no such memory."""
    if sys.platform != "linux":
        return ""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_NETWORK.readlink()}"
    except OSError:
        return ""


def ring_bytes(most_page_bytes: int) -> int:
    """Return the size of a ring. most_page_bytes: of one page."""
    least = max(_LEAST_BYTES, _PAGES * most_page_bytes)
    return -(-least // mmap.PAGESIZE) * mmap.PAGESIZE


class PageRing(ABC):
    """The producer's end: the places of a memory of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._head = 0  # position behind the newest page
        self._tail = 0  # position up to which pages were used

    def write(self, page: PageContent) -> int | None:
        """Write a page; returns its position, or None if the consumer has to use others first."""
        start, room = self._head, self._size - self._head % self._size
        if room < len(page):
            start += room  # a page is in one piece
        if start + len(page) - self._tail > self._size:
            return None
        self.fill(start % self._size, page)
        self._head = start + len(page)
        return start

    @abstractmethod
    def fill(self, at: int, page: PageContent) -> None:
        """Copy a page to a place."""
        ...

    def used(self, position: int) -> None:
        """Note that the consumer needs nothing before a position. Raises `FrameError` for one that
        was not reached."""
        if position > self._head:
            raise FrameError(f"pages used up to {position}, of {self._head} that were written")
        self._tail = max(self._tail, position)

    @abstractmethod
    def close(self) -> None:
        """Give the memory up."""
        ...


class HostRing(PageRing):
    """A ring in the host's memory. descriptor: of the memory; memory: itself."""

    def __init__(self, most_page_bytes: int) -> None:
        size = ring_bytes(most_page_bytes)
        super().__init__(size)
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("atom-kv-pages", flags)
        os.ftruncate(self.descriptor, size)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEALS)
        self.memory = mmap.mmap(self.descriptor, size)

    def fill(self, at: int, page: PageContent) -> None:
        """Copy a page to a place."""
        assert not isinstance(page, DevicePage), "its consumer reads no device"
        self.memory[at : at + len(page)] = page

    def close(self) -> None:
        """Give the memory up; it stays mapped as long as a page is written."""
        os.close(self.descriptor)


class DeviceRing(PageRing):
    """A ring in the memory of a device, into which pages are copied from the device alone. range:
    of the memory."""

    def __init__(self, memory: DeviceMemory, most_page_bytes: int) -> None:
        """Raises `OSError`."""
        size = ring_bytes(most_page_bytes)
        super().__init__(size)
        self._memory = memory
        self.range = memory.offer(size)

    def fill(self, at: int, page: PageContent) -> None:
        """Copy a page to a place."""
        assert isinstance(page, DevicePage), "pages are read for this consumer"
        self._memory.copy(self.range.address + at, page)

    def close(self) -> None:
        """Give the memory up."""
        self._memory.withdraw(self.range)


class _DeviceBytes:
    """The bytes of a range, as a PageWindow takes them apart."""

    def __init__(self, opened: DeviceRange) -> None:
        self._opened = opened

    def __len__(self) -> int:
        return self._opened.size

    def __getitem__(self, which: slice) -> DevicePage:
        address = self._opened.address + which.start
        return DevicePage(address, which.stop - which.start, b"", self._opened)


class PageWindow:
    """The consumer's end. memory: has a page at its place once the page was announced."""

    def __init__(self, memory: memoryview | _DeviceBytes) -> None:
        self._memory, self._size = memory, len(memory)
        self._unused: dict[int, int] = {}  # ends of pages that are not used yet, by position
        self._end = 0  # of all pages so far
        self._released = 0

    def page(self, position: int, size: int) -> memoryview | DevicePage | None:
        """Return the bytes of a page until `use`; None for one that may have been written over.
        Raises `FrameError` for a place outside the memory."""
        at = self.place_of(position)
        if at + size > self._size:
            raise FrameError(f"a page of {size} bytes at {at} of {self._size}")
        if position < self._released or position in self._unused:
            return None
        self._unused[position] = position + size
        self._end = max(self._end, position + size)
        return self._memory[at : at + size]

    def place_of(self, position: int) -> int:
        """Return the place in the memory of a position, in bytes."""
        return position % self._size

    def use(self, position: int) -> int:
        """Note that a page was used or dropped; returns the position to report."""
        self._unused.pop(position, None)
        self._released = max(self._released, min(self._unused, default=self._end))
        return self._released

    def close(self) -> None:
        """Need the memory no more, except for pages that are not used yet."""


class DeviceWindow(PageWindow):
    """The consumer's end of a ring in the memory of the producer's device."""

    def __init__(self, memory: DeviceMemory, handle: bytes, size: int) -> None:
        """Raises `OSError` if the memory cannot be mapped."""
        super().__init__(_DeviceBytes(memory.open(handle, size)))

    def close(self) -> None:
        """Unmap the memory once its pages are used."""
        self._memory = memoryview(b"")


def map_window(descriptor: int) -> PageWindow:
    """Map a producer's memory. descriptor: of it, closed here. Raises `OSError` for memory that
    could become shorter."""
    try:
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise OSError("the memory for pages is not sealed")
        size = os.fstat(descriptor).st_size
        return PageWindow(memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ)))
    finally:
        os.close(descriptor)
