"""TransferredPages: pages of the KV cache as bytes, for engines that exchange them.

A rank alone returns and takes the bytes themselves. On a GPU each thread that copies does so on a
stream of its own, through pinned memory, beside the steps; the step that computed a page has ended
by then, and the step that attends to it begins later. A rank of several copies its own heads only,
on the stream of the steps, from and to pages in memory that all ranks share (`copy`). Used by
KVTransfer, a few pages at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from atom.model_engine.runner.pages.canonical_pages import (
    CachedLayers,
    Share,
    describe_pages,
    pages_by_kind,
)
from atom.model_engine.runner.pages.device_runtime import DeviceRuntime
from atom.model_engine.runner.pages.kv_pages import page_tables
from atom.model_engine.runner.pages.peer_memory import PeerMemory, Runtime
from atom.model_engine.runner.pages.shared_pages import SharedPages
from atom.model_engine.runner.pages.side_stream import SideStream
from atom.model_ops.backends.page_ops import page_ops
from atom.utils.device import upload

logger = logging.getLogger(__name__)


def device_runtime(device: torch.device) -> Runtime | None:
    """Return the calls for memory that other processes reach; None on the CPU."""
    if device.type != "cuda":
        return None
    try:
        return DeviceRuntime(device)
    except OSError as error:
        logger.warning("kv transfer: pages cannot stay on the device: %s", error)
        return None


class TransferredPages:
    """Implements PageAccess over one device, for a rank alone. shared: None for a rank alone;
    device_memory: None for ranks of several, and on the CPU."""

    def __init__(
        self, cached: CachedLayers, num_checkpoints: int, share: Share, device: torch.device
    ) -> None:
        """num_checkpoints: of states, that the layers hold."""
        self._cached = cached
        self._tables = page_tables(cached.layers, cached.groups, num_checkpoints)
        self._canonical = pages_by_kind(cached, self._tables, share)
        self._device = device
        self._ops = page_ops(device)
        self._side = SideStream(device)
        self.shared: SharedPages | None = None
        if share.descriptor is not None:
            largest = max(page.page_bytes for page in self._canonical)
            self.shared = SharedPages(share.descriptor, share.rank, share.ranks, largest)
        self.device_memory: PeerMemory | None = None
        if self.shared is None and (runtime := device_runtime(device)) is not None:
            self.device_memory = PeerMemory(runtime, self._tables, device)

    def page_bytes(self, group: int) -> int:
        """Return the size of a page of this group, or of states, of all heads."""
        return self._canonical[group].page_bytes

    def tensors(self) -> list[str]:
        """Describe the pages of each group, and of states: its layers, and the shapes of their
        parts in bytes."""
        return describe_pages(self._cached, self._canonical)

    @property
    def copies_beside_steps(self) -> bool:
        """Return whether other threads may read and write."""
        return self.shared is None and self._device.type == "cuda"

    @torch.inference_mode()
    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        """Return the pages of blocks, in this order."""
        with self._beside_steps():
            return [page.data for page in self._read(group, block_ids).numpy()]

    def submitted_steps(self) -> torch.cuda.Event | None:
        """Return an event behind the steps that were submitted so far; None on the CPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @torch.inference_mode()
    def write(
        self,
        group: int,
        block_ids: Sequence[int],
        pages: Sequence[bytes | memoryview],
        after: object | None = None,
    ) -> None:
        """Fill blocks with pages. after: an event that is waited for first."""
        pinned = self._device.type == "cuda"
        shape = (len(block_ids), self.page_bytes(group))
        joined = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        for row, page in zip(joined.numpy(), pages, strict=True):
            row[:] = np.frombuffer(page, dtype=np.uint8)  # without the interpreter's lock
        with self._beside_steps(after):
            self._write(group, block_ids, joined)

    @torch.inference_mode()
    def copy(self, group: int, block_ids: Sequence[int], number: int, *, is_read: bool) -> None:
        """Copy this rank's heads of blocks to the first rows of the shared memory (`is_read`), or
        from them. number: of the call, which the leader waits for."""
        assert self.shared is not None, "ranks of several share memory"
        page = self._canonical[group]
        rows = self.shared.rows(len(block_ids), page.page_bytes)
        if is_read:
            page.gather(self._read(group, block_ids), rows)
        else:
            own = torch.empty((len(block_ids), self._tables[group].page_bytes), dtype=torch.uint8)
            page.scatter(rows, own)
            self._write(group, block_ids, own)
        self.shared.finish(number)

    def _beside_steps(self, after: object | None = None) -> AbstractContextManager[object]:
        """Let the body copy on a stream of this thread, and wait for it; not that of a rank of
        several, which copies on the stream of the steps."""
        return nullcontext() if self.shared is not None else self._side.beside_steps(after)

    def _read(self, group: int, block_ids: Sequence[int]) -> torch.Tensor:
        """Return this rank's own pages [n, bytes] on the host."""
        table = self._tables[group]
        shape = (len(block_ids), table.page_bytes)
        pages = torch.empty(shape, dtype=torch.uint8, device=self._device)
        self._ops.read_pages(table, self._blocks(block_ids), pages)
        if self._device.type != "cuda":
            return pages
        found = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        found.copy_(pages, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return found

    def _write(self, group: int, block_ids: Sequence[int], pages: torch.Tensor) -> None:
        rows = pages.to(self._device, non_blocking=True)
        self._ops.write_pages(self._tables[group], self._blocks(block_ids), rows)

    def _blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        return upload(np.array(block_ids, dtype=np.int64), self._device)
