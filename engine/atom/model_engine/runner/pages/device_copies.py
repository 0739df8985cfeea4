"""DeviceCopies: the moves of one rank on a GPU, beside the steps.

A call starts one kernel for each kind of pages, which gathers blocks into a staging buffer in the
order of the steps' stream. Two threads, one of each direction, copy between staging buffers and the
pinned rows of the host, piece by piece on streams of their own: while a piece is copied, the blocks
of another are filled. The kernels compute the checksums of the pages that they read, so the host
touches no byte of a page. Neither the steps nor the host wait for a copy. A block is complete
before the core hears of it. Used by RankTier.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from atom.model_engine.page_moves import Move
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.page_copies import Clock
from atom.model_engine.runner.pages.page_rows import PageRows, batches
from atom.model_ops.backends.page_ops import PageOps
from atom.model_ops.page_table import PageTable
from atom.utils.device import upload

logger = logging.getLogger(__name__)

_PIECES = 4  # of a staging buffer that are under way to the device at once


@dataclass(frozen=True, slots=True)
class Staging:
    """The most pages of blocks, and of checkpoints, that are copied from the device at once. loads:
    pages of blocks of the buffer to the device."""

    pages: int
    states: int
    loads: int


@dataclass(frozen=True, slots=True)
class _Job:
    """The moves of a call, for the threads. staged: batches of saves, each with the rows of a
    staging buffer that have their pages, and their checksums; ready: after the kernels that read
    them, and after the steps that may use the blocks of loads."""

    number: int
    staged: list[tuple[list[Move], torch.Tensor, torch.Tensor]]
    loads: Sequence[Move]
    ready: torch.cuda.Event


class DeviceCopies:
    """Copies beside the steps of a GPU."""

    def __init__(
        self,
        tables: Sequence[PageTable],
        memory: HostMemory,
        ops: PageOps,
        clock: Clock,
        staging: Staging,
    ) -> None:
        """staging: as many as KVTiers may have under way, so a place of the buffer is free when it
        comes up again."""
        self._tables, self._memory, self._rows = tables, memory, PageRows(memory)
        self._ops, self._clock = ops, clock
        self._device = tables[0].segments[0].memory.device
        shape = memory.shape
        self._out = _Ring(staging.pages, shape.page_bytes, self._device)
        self._out_states = _Ring(staging.states, shape.state_bytes, self._device)
        self._in = _Pieces(staging.loads, shape.page_bytes, self._device)
        self._in_states = _Pieces(staging.states, shape.state_bytes, self._device)
        self._pinned = _pin(memory)
        self._storing, self._loading, self._filling = (_stream(self._device) for _ in range(3))
        self._warm_up()
        self._lock = threading.Lock()
        self._half_done: set[int] = set()  # calls that one thread has carried out
        self._lanes = [
            _Lane("kv-pages-out", self._device, self._save),
            _Lane("kv-pages-in", self._device, self._load),
        ]

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        staged = []
        for kind, moves in groupby(saves, itemgetter(0)):
            ring, table, batch = self._ring(kind), self._tables[kind], list(moves)
            assert len(batch) <= ring.size, "more pages are under way than have a place"
            for part, pages in ring.take(batch, table.page_bytes):
                sums = self._zeros(len(part))
                self._ops.read_pages(table, self._blocks(part), pages, sums)
                staged.append((part, pages, sums))
        ready = _event()
        ready.record()
        for lane in self._lanes:
            lane.put(_Job(number, staged, loads, ready))

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        if self._pinned:
            _runtime().cudaHostUnregister(self._memory.mapped.ctypes.data)

    def _ring(self, kind: int) -> _Ring:
        return self._out_states if self._is_state(kind) else self._out

    def _is_state(self, kind: int) -> bool:
        return self._memory.shape.num_states > 0 and kind == len(self._tables) - 1

    def _blocks(self, moves: Sequence[Move]) -> torch.Tensor:
        """Upload the blocks of moves, without waiting for the steps that were submitted."""
        return upload(np.array([move.block for move in moves], dtype=np.int64), self._device)

    def _zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self._device)

    def _warm_up(self) -> None:
        """Compile the kernels: a block is read, and written to itself."""
        sums = self._zeros(1)
        first = torch.zeros(1, dtype=torch.int64, device=self._device)
        for kind, table in enumerate(self._tables):
            pieces = self._in_states if self._is_state(kind) else self._in
            page = pieces.next().rows[:1, : table.page_bytes]
            self._ops.read_pages(table, first, page, sums)
            self._ops.write_pages(table, first, page, sums)

    def _finish_half(self, number: int) -> None:
        """Note that one direction of a call is complete: the call is, if the other one is."""
        with self._lock:
            if number not in self._half_done:
                self._half_done.add(number)
                return
            self._half_done.remove(number)
            self._memory.finish(number)

    # ---- the thread to the host ----------------------------------------------------------------

    def _save(self, job: _Job) -> None:
        try:
            self._store(job)
        except Exception:  # the checksums of these rows are void
            logger.exception("pages of the KV cache could not be copied to the host")
        self._finish_half(job.number)

    def _store(self, job: _Job) -> None:
        for batch, _, _ in job.staged:
            self._rows.void(batch)
        job.ready.synchronize()
        began, stored = self._clock(), 0
        with torch.cuda.stream(self._storing):
            for batch, staged, _ in job.staged:
                for rows, pages in self._rows.runs(batch, staged):
                    rows.copy_(pages, non_blocking=True)
                stored += staged.nbytes
            found = [(batch, self._to_host(sums)) for batch, _, sums in job.staged]
            self._storing.synchronize()
        for batch, sums in found:
            self._rows.note(batch, sums)
        if stored:
            self._memory.count(stored=stored, seconds=self._clock() - began)

    def _to_host(self, sums: torch.Tensor) -> torch.Tensor:
        """Begin to copy checksums to the host, on the current stream."""
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.is_cuda)
        return host.copy_(sums, non_blocking=True)

    # ---- the thread to the device --------------------------------------------------------------

    def _load(self, job: _Job) -> None:
        try:
            self._fill(job)
        except Exception:  # pages are lost, and no request: their tokens are computed
            logger.exception("pages of the KV cache could not be copied to the device")
            for move in job.loads:
                self._memory.spoil(move.row, job.number)
        self._finish_half(job.number)

    def _fill(self, job: _Job) -> None:
        job.ready.synchronize()
        began, loaded = self._clock(), 0
        found: list[tuple[list[Move], torch.Tensor]] = []
        for kind, moves in groupby(job.loads, itemgetter(0)):
            pieces = self._in_states if self._is_state(kind) else self._in
            table = self._tables[kind]
            for batch in batches(list(moves), pieces.size):
                found.append((batch, self._copy_in(batch, pieces.next(), table)))
                loaded += len(batch) * table.page_bytes
        self._filling.synchronize()
        for batch, sums in found:
            self._rows.check(job.number, batch, sums)
        if loaded:
            self._memory.count(loaded=loaded, seconds=self._clock() - began)

    def _copy_in(self, batch: Sequence[Move], piece: _Piece, table: PageTable) -> torch.Tensor:
        """Copy rows into a piece of the staging buffer, and from there to their blocks. Returns
        their checksums on the host, once the stream is there."""
        staged = piece.rows[: len(batch), : table.page_bytes]
        with torch.cuda.stream(self._loading):
            self._loading.wait_event(piece.free)
            for rows, pages in self._rows.runs(batch, staged):
                pages.copy_(rows, non_blocking=True)
            piece.copied.record(self._loading)
        with torch.cuda.stream(self._filling):
            blocks, sums = self._blocks(batch), self._zeros(len(batch))
            self._filling.wait_event(piece.copied)
            self._ops.write_pages(table, blocks, staged, sums)
            piece.free.record(self._filling)
            return self._to_host(sums)


class _Lane:
    """A thread that carries out jobs in their order."""

    def __init__(self, name: str, device: torch.device, run: Callable[[_Job], None]) -> None:
        self._device, self._run_job = device, run
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Carry out the jobs that were put, and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                self._run_job(job)


class _Ring:
    """A staging buffer whose rows are used in turn."""

    def __init__(self, size: int, row_bytes: int, device: torch.device) -> None:
        self.size = size
        self._rows = torch.empty((size, row_bytes), dtype=torch.uint8, device=device)
        self._next = 0

    def take(
        self, batch: Sequence[Move], page_bytes: int
    ) -> Iterator[tuple[list[Move], torch.Tensor]]:
        """Yield the batch in parts, each with rows that follow one another."""
        left = iter(batch)
        while part := list(islice(left, self.size - self._next)):
            count = len(part)
            yield part, self._rows[self._next : self._next + count, :page_bytes]
            self._next = (self._next + count) % self.size


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a staging buffer. copied: after they were filled; free: after they were used."""

    rows: torch.Tensor
    copied: torch.cuda.Event
    free: torch.cuda.Event


class _Pieces:
    """A staging buffer in pieces that are used in turn. size: rows of a piece."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        self.size = max(1, rows // _PIECES)
        whole = torch.empty((max(rows, 1), row_bytes), dtype=torch.uint8, device=device)
        firsts = range(0, max(rows, 1) - self.size + 1, self.size)
        self._pieces = [
            _Piece(whole[first : first + self.size], _event(), _event()) for first in firsts
        ]
        self._next = 0

    def next(self) -> _Piece:
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % len(self._pieces)
        return piece


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    """Make an event that a thread waits for without keeping a core busy."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def _pin(memory: HostMemory) -> bool:
    """Pin the host's memory, so that copies run beside the host. Returns whether it is pinned."""
    address, size = memory.mapped.ctypes.data, memory.mapped.nbytes
    if int(_runtime().cudaHostRegister(address, size, 0)) == 0:
        return True
    logger.warning(
        "the host's tier of the KV cache cannot be pinned, and is copied more slowly; raise the "
        "limit of locked memory (ulimit -l), or give a smaller --kv-offloading-size"
    )
    return False


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
