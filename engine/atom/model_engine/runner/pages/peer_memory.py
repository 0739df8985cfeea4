"""PeerMemory: pages that go from one GPU to another, or stay on it, between processes of a host.

A producer's kernel gathers blocks to pages on its device, which are copied to memory that another
process has mapped. The consumer copies them from there to its own device, and its kernel scatters
them. Both kernels compute the checksum of what they copy, so a page is proven when it is in its
block, before any request finds that. No byte passes the host.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from atom.model_engine.page_access import DevicePage, DeviceRange
from atom.model_engine.runner.pages.side_stream import SideStream
from atom.model_ops.backends.page_ops import page_ops
from atom.model_ops.page_table import PageTable
from atom.utils.device import upload


class Runtime(Protocol):
    """See DeviceRuntime."""

    name: str

    def allocate(self, size: int) -> int: ...

    def export(self, address: int) -> bytes: ...

    def open(self, handle: bytes) -> int: ...

    def close(self, address: int) -> None: ...

    def copy(self, to: int, source: int, size: int, stream: int) -> None: ...


class PeerMemory:
    """Implements DeviceMemory. tables: of each group, and of states."""

    def __init__(self, runtime: Runtime, tables: Sequence[PageTable], device: torch.device) -> None:
        self._runtime, self._tables, self._device = runtime, tables, device
        self._ops = page_ops(device)
        self._side = SideStream(device)
        self._lock = threading.Lock()
        self._withdrawn: list[DeviceRange] = []

    @property
    def kind(self) -> str:
        """Return the runtime, and the words that checksums are computed of."""
        words = [table.word_of_rows(table.page_bytes) for table in self._tables]
        return f"{self._runtime.name} {' '.join(map(str, words))}"

    @property
    def device_name(self) -> str:
        """Return the identity of the device."""
        if self._device.type != "cuda":
            return str(self._device)
        return f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"

    def offer(self, size: int) -> DeviceRange:
        """Return memory that others may read: that of an earlier consumer, which can still read it,
        or new memory. Raises `OSError`."""
        with self._lock:
            for at, free in enumerate(self._withdrawn):
                if free.size == size:
                    return self._withdrawn.pop(at)
        address = self._runtime.allocate(size)
        return DeviceRange(address, size, self._runtime.export(address))

    def withdraw(self, offered: DeviceRange) -> None:
        """Keep memory for the next consumer, since a lost one may have it mapped still."""
        with self._lock:
            self._withdrawn.append(offered)

    def open(self, handle: bytes, size: int) -> DeviceRange:
        """Map another engine's memory, until nothing refers to the result. Raises `OSError`."""
        opened = DeviceRange(self._runtime.open(handle), size, handle)
        weakref.finalize(opened, self._runtime.close, opened.address).atexit = False
        return opened

    def copy(self, to: int, page: DevicePage) -> None:
        """Copy a page to an address of this device. Raises `OSError`."""
        with self._side.beside_steps() as stream:
            self._runtime.copy(to, page.address, page.size, stream)

    @torch.inference_mode()
    def read(self, group: int, block_ids: Sequence[int]) -> list[DevicePage]:
        """Return the pages of blocks, in this order."""
        table = self._tables[group]
        with self._side.beside_steps():
            pages, sums = self._rows(table, len(block_ids))
            self._ops.read_pages(table, self._blocks(block_ids), pages, sums)
            found = sums.cpu().numpy()
        return [
            DevicePage(row.data_ptr(), table.page_bytes, total.tobytes(), row)
            for row, total in zip(pages, found, strict=True)
        ]

    @torch.inference_mode()
    def write(
        self, group: int, block_ids: Sequence[int], pages: Sequence[DevicePage], after: object
    ) -> list[bool]:
        """Fill blocks with pages; returns which of them agree with their checksums. after: an event
        that is waited for first."""
        table = self._tables[group]
        with self._side.beside_steps(after) as stream:
            rows, sums = self._rows(table, len(pages))
            for row, page in zip(rows, pages, strict=True):
                self._runtime.copy(row.data_ptr(), page.address, page.size, stream)
            self._ops.write_pages(table, self._blocks(block_ids), rows, sums)
            found = sums.cpu().numpy()
        return [bool(page.sum == total.tobytes()) for page, total in zip(pages, found, strict=True)]

    def _rows(self, table: PageTable, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for pages, and zeros for their checksums."""
        rows = torch.empty((count, table.page_bytes), dtype=torch.uint8, device=self._device)
        return rows, torch.zeros(count, dtype=torch.int64, device=self._device)

    def _blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        return upload(np.array(block_ids, dtype=np.int64), self._device)
