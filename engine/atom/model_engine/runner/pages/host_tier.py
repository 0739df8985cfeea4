"""HostTier: a rank's end of the KV cache's tier in the host's memory.

It maps the memory that the ranks of a copy share, and copies between its rows and the blocks of the
cache while there is a cache: `bind` follows each allocation, `unbind` precedes each release. On the
rank of the core's own process a thread wakes the core when the moves of all ranks are made, if they
are not made in the call. Owned by ModelRunner.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import starmap

import psutil

from atom.collectives.group import Group
from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.control import MovePages
from atom.model_engine.page_moves import Move, MoveTotals
from atom.model_engine.runner.kv_cache import run_limits
from atom.model_engine.runner.pages.canonical_pages import (
    CachedLayers,
    Share,
    describe_pages,
    pages_by_kind,
)
from atom.model_engine.runner.pages.device_copies import DeviceCopies, Staging
from atom.model_engine.runner.pages.file_rows import FileRows
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.kv_pages import page_tables
from atom.model_engine.runner.pages.page_copies import Copies, PageCopies
from atom.model_engine.runner.pages.page_sums import DeviceSums, HostSums, PageSums
from atom.model_engine.wire.host_tier_report import HostTierReport
from atom.model_ops.backends.page_ops import page_ops
from atom.model_ops.page_table import PageTable
from atom.sizing.host_tier import GIB, HostTier, host_tier
from atom.sizing.kv_layout import KvLayout
from atom.utils.device import Device
from atom.utils.unnamed_memory import unnamed_memory

_POLL_SECONDS = 0.0002  # until another rank has made its moves, too


class RankTier:
    """A rank's rows of the tier, and the copies of its cache. wake_fd: readable when moves that
    were not made in their call are complete; of the core's own rank."""

    def __init__(
        self,
        shape: HostTier,
        device: Device,
        group: Group,
        descriptor: int | None = None,
        files: HostTier | None = None,
    ) -> None:
        """descriptor: of the memory that the ranks share; None for memory of its own; files: the
        shape of a tier on a disk behind it, for the report."""
        if descriptor is None:
            descriptor = unnamed_memory("atom-kv-pages")
        self._shape, self._device, self._group = shape, device, group
        self._files = files
        self._memory = HostMemory(descriptor, shape, group.rank)
        self.rows = FileRows(self._memory)
        self._copies: Copies | None = None
        self.tensors: list[str] = []  # a description of each kind of pages
        self._watch: _Watch | None = None
        if group.rank == 0 and (device.is_gpu or group.size > 1):
            self._watch = _Watch(self._memory)

    @property
    def wake_fds(self) -> Sequence[int]:
        return () if self._watch is None else (self._watch.wake_fd,)

    @property
    def staging_bytes(self) -> int:
        """Return the device memory of the buffers between the cache and the host."""
        return self._shape.staging_bytes if self._device.is_gpu else 0

    def report(self) -> HostTierReport:
        """Report the tier to the core and to people."""
        return HostTierReport.of(self._shape, self._files)

    # ---- the cache -----------------------------------------------------------------------------

    def bind(self, cached: CachedLayers, num_checkpoints: int) -> None:
        """Copy from and to the cache that the layers hold from now on."""
        tables = page_tables(cached.layers, cached.groups, num_checkpoints)
        ranks = range(self._shape.ranks)
        pages = [pages_by_kind(cached, tables, Share(rank, len(ranks))) for rank in ranks]
        self.tensors = describe_pages(cached, pages[0])
        self.rows.bind(pages, self._sums(tables, len(cached.groups)))
        self.bind_tables(tables)

    def bind_tables(self, tables: Sequence[PageTable]) -> None:
        """Copy from and to the blocks of these tables, one of each kind of pages."""
        ops, clock = page_ops(self._device.torch_device), time.perf_counter
        if not self._device.is_gpu:
            self._copies = PageCopies(tables, self._memory, ops, clock)
            return
        staging = Staging(*self._shape.queue_sizes, self._shape.piece_pages)
        self._copies = DeviceCopies(tables, self._memory, ops, clock, staging)

    def _sums(self, tables: Sequence[PageTable], num_groups: int) -> PageSums:
        """Return the checksums that ranks note of their rows."""
        if not self._device.is_gpu:
            return HostSums()
        rows = self._shape.page_bytes, self._shape.state_bytes
        return DeviceSums(
            [table.word_of_rows(rows[kind >= num_groups]) for kind, table in enumerate(tables)]
        )

    def unbind(self) -> None:
        """Make the moves that were called, and let go of the cache."""
        if self._copies is not None:
            self._copies.close()
        self._copies = None

    # ---- moves ---------------------------------------------------------------------------------

    def move(self, call: MovePages) -> None:
        """Begin to carry out the moves of a call, or carry them out."""
        assert self._copies is not None, "pages are moved while there is a cache"
        saves, loads = starmap(Move, call.saves), starmap(Move, call.loads)
        self._copies.move(call.number, list(saves), list(loads))
        if self._watch is not None:
            self._watch.wait_for(call.number)

    @property
    def moved_number(self) -> int:
        """Return the last call that every rank has carried out."""
        if self._watch is not None:
            self._watch.drain()
        return self._memory.finished

    @property
    def totals(self) -> MoveTotals:
        """Return this rank's bytes and seconds."""
        return MoveTotals(*self._memory.totals)

    def spoiled_rows(self, number: int, rows: Iterable[int]) -> set[int]:
        """Return the rows that a rank has found spoiled, in this call or later."""
        return {row for row in rows if self._memory.spoiled_at(row) >= number}

    def wait_moved(self, number: int) -> None:
        """Wait until every rank has carried out the calls up to this one."""
        if self._watch is not None:
            self._watch.join(number)


class _Watch:
    """Wakes the core's loop when every rank has carried out a call."""

    def __init__(self, memory: HostMemory) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._memory = memory
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._seen = threading.Condition()
        self._last = 0
        threading.Thread(target=self._run, name="kv-pages-moved", daemon=True).start()

    def wait_for(self, number: int) -> None:
        """Wake the core once this call is carried out."""
        self._numbers.put(number)

    def join(self, number: int) -> None:
        """Wait for a call of `wait_for`; the descriptor is not readable for it afterwards."""
        with self._seen:
            self._seen.wait_for(lambda: self._last >= number)
        self.drain()

    def drain(self) -> None:
        """Let the descriptor be readable again only after a later call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)

    def _run(self) -> None:
        while True:
            number = self._numbers.get()
            while self._memory.finished < number:
                time.sleep(_POLL_SECONDS)
            with self._seen:
                os.eventfd_write(self.wake_fd, 1)
                self._last = number
                self._seen.notify_all()


def tier_shape(config: Config, layout: KvLayout, device: Device, ranks: int) -> HostTier | None:
    """Return the tier of a copy of the model; None without one. Raises `ConfigError` with the sizes
    that work."""
    size_bytes = config.tier_bytes
    if not size_bytes:
        return None
    flag = f"--kv-offloading-size {config.tier.offloading_size:g}"
    limits = run_limits(config)
    shape = host_tier(size_bytes, layout, limits, ranks)
    copies = config.parallel.data_parallel_size
    if not shape.num_pages:
        least = host_tier(1 << 62, layout, limits, ranks)
        unit = (
            copies
            * least.size_bytes
            // max(least.num_states, 1)
            // (1 if least.num_states else least.num_pages)
        )
        raise ConfigError(f"{flag}: it holds no page; give at least {unit / GIB:.3g}")
    free = min(psutil.virtual_memory().available, device.host_memory_bytes())
    if size_bytes * copies > free:
        raise ConfigError(
            f"{flag}: the host has {free / GIB:.1f} GiB left; give at most "
            f"{int(free * 0.9 / GIB * 10) / 10:g}"
        )
    return shape


def open_tier(
    config: Config, layout: KvLayout, device: Device, group: Group, descriptor: int | None
) -> RankTier | None:
    """Open a rank's end of the tier; None without one. descriptor: as `RankTier` takes it. Raises
    `ConfigError` with the sizes that work."""
    shape = tier_shape(config, layout, device, group.size)
    if shape is None:
        return None
    return RankTier(shape, device, group, descriptor, files_shape(config, layout, group.size))


def files_shape(config: Config, layout: KvLayout, ranks: int) -> HostTier | None:
    """Return the shape of the tier in files, of --kv-disk-size; None without one."""
    if config.tier.disk_size is None:
        return None
    return host_tier(int(config.tier.disk_size * GIB), layout, run_limits(config), ranks)
