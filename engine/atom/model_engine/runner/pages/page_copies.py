"""PageCopies: the moves of one rank, in the order in which they are called.

On the CPU the copies are made in the call. On a GPU (DeviceCopies) the call starts kernels that
gather blocks into a staging buffer, in the order of the step's stream, and a thread copies the
buffer to the host beside later steps; pages are read the other way round, and a block is complete
before the core hears of it. Every page gets a checksum (xxh3, 64 bits) when it is written, and is
compared with it when it is read. Used by HostTier.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol

import torch
import xxhash

from atom.model_engine.page_moves import Move
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_ops.backends.page_ops import PageOps
from atom.model_ops.page_table import PageTable

logger = logging.getLogger(__name__)

_HASHERS = 4  # threads of checksums: one thread sums up fewer bytes than the bus carries
_AT_ONCE = 64  # pages that are copied together on the CPU, through a buffer
Clock = Callable[[], float]


class Copies(Protocol):
    """Carries out the moves of a rank."""

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        """Begin to carry out the moves of a call."""
        ...

    def close(self) -> None:
        """Carry out the moves that were called, and stop."""
        ...


class PageCopies:
    """Copies in the call itself."""

    def __init__(
        self, tables: Sequence[PageTable], memory: HostMemory, ops: PageOps, clock: Clock
    ) -> None:
        """tables: of each kind of pages; clock: in seconds."""
        self._tables, self._rows = tables, _Rows(memory)
        self._memory, self._ops, self._clock = memory, ops, clock

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        began = self._clock()
        stored = sum([self._save(batch) for batch in _batches(saves, _AT_ONCE)])
        middle = self._clock()
        loaded = sum([self._load(number, batch) for batch in _batches(loads, _AT_ONCE)])
        if stored:
            self._memory.count(stored=stored, seconds=middle - began)
        if loaded:
            self._memory.count(loaded=loaded, seconds=self._clock() - middle)
        self._memory.finish(number)

    def close(self) -> None:
        pass

    def _save(self, batch: Sequence[Move]) -> int:
        table, pages = self._buffer(batch)
        self._rows.void(batch)
        self._ops.read_pages(table, _blocks(batch), pages)
        self._rows.put(batch, pages)
        for move in batch:
            self._rows.sum_up(move.row, table.page_bytes)
        return pages.nbytes

    def _load(self, number: int, batch: Sequence[Move]) -> int:
        table, pages = self._buffer(batch)
        self._rows.check(number, batch, table.page_bytes)
        self._rows.get(batch, pages)
        self._ops.write_pages(table, _blocks(batch), pages)
        return pages.nbytes

    def _buffer(self, batch: Sequence[Move]) -> tuple[PageTable, torch.Tensor]:
        table = self._tables[batch[0].kind]
        return table, torch.empty(len(batch), table.page_bytes, dtype=torch.uint8)


class _Rows:
    """A rank's rows of the host's memory, and their checksums."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._num_pages = memory.shape.num_pages

    def put(self, moves: Sequence[Move], pages: torch.Tensor) -> None:
        """Copy pages [n, page_bytes], of one kind, into their rows."""
        rows, index = self._all(moves)
        rows[:, : pages.shape[1]].index_copy_(0, index, pages)

    def get(self, moves: Sequence[Move], pages: torch.Tensor) -> None:
        """Copy rows, of one kind, to pages [n, page_bytes]."""
        rows, index = self._all(moves)
        pages.copy_(rows[:, : pages.shape[1]].index_select(0, index))

    def _all(self, moves: Sequence[Move]) -> tuple[torch.Tensor, torch.Tensor]:
        first = 0 if moves[0].row < self._num_pages else self._num_pages
        index = torch.tensor([move.row - first for move in moves], dtype=torch.int64)
        return self._memory.states if first else self._memory.pages, index

    def runs(
        self, moves: Sequence[Move], pages: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield rows and pages [n, page_bytes] of one kind that are each one piece of memory: of
        rows that follow one another and that pages fill."""
        rows, index = self._all(moves)
        size, numbers = pages.shape[1], index.tolist()
        is_whole = rows.is_contiguous() and rows.shape[1] == size and pages.is_contiguous()
        first = 0
        for at in range(1, len(numbers) + 1):
            if at < len(numbers) and is_whole and numbers[at] == numbers[at - 1] + 1:
                continue
            row = numbers[first]
            yield rows[row : row + at - first, :size], pages[first:at]
            first = at

    def bytes_of(self, row: int) -> torch.Tensor:
        """Return the bytes of a row, of a block or of a checkpoint."""
        memory = self._memory
        if row < self._num_pages:
            return memory.pages[row]
        return memory.states[row - self._num_pages]

    def void(self, moves: Sequence[Move]) -> None:
        """Drop the checksums of rows that are about to be written: if that fails, the pages that
        were in them before are not taken for the new ones."""
        for move in moves:
            self._memory.sums[move.row] = 0

    def sum_up(self, row: int, size: int) -> None:
        """Note the checksum of a row that was written."""
        self._memory.sums[row] = self._sum(row, size)

    def check(self, number: int, moves: Sequence[Move], size: int) -> None:
        """Note which rows of a call have another checksum now."""
        for move in moves:
            if int(self._memory.sums[move.row]) != self._sum(move.row, size):
                self._memory.spoil(move.row, number)

    def _sum(self, row: int, size: int) -> int:
        return xxhash.xxh3_64_intdigest(self.bytes_of(row)[:size].numpy().data)


@dataclass(frozen=True, slots=True)
class _Job:
    """The moves of a call, for the thread. staged: batches of saves, each with the rows of a
    staging buffer that have their pages; ready: after the kernels that read them, and after the
    steps that may use the blocks of loads."""

    number: int
    staged: list[tuple[list[Move], torch.Tensor]]
    loads: Sequence[Move]
    ready: torch.cuda.Event


@dataclass(frozen=True, slots=True)
class Staging:
    """The most pages of blocks, and of checkpoints, that are copied from the device at once."""

    pages: int
    states: int


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
        self._tables, self._memory, self._rows = tables, memory, _Rows(memory)
        self._ops, self._clock = ops, clock
        self._device = tables[0].segments[0].memory.device
        shape = memory.shape
        self._out = _Ring(staging.pages, shape.page_bytes, self._device)
        self._out_states = _Ring(staging.states, shape.state_bytes, self._device)
        self._in = torch.empty(
            (staging.pages, shape.page_bytes), dtype=torch.uint8, device=self._device
        )
        states = (staging.states, shape.state_bytes)
        self._in_states = torch.empty(states, dtype=torch.uint8, device=self._device)
        self._pinned = _pin(memory)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._warm_up()
        self._hashers = ThreadPoolExecutor(_HASHERS, "kv-sums")
        self._thread = threading.Thread(target=self._run, name="kv-pages", daemon=True)
        self._thread.start()

    def move(self, number: int, saves: Sequence[Move], loads: Sequence[Move]) -> None:
        staged = []
        for kind, moves in groupby(saves, itemgetter(0)):
            ring, table, batch = self._ring(kind), self._tables[kind], list(moves)
            assert len(batch) <= ring.size, "more pages are under way than have a place"
            for part, pages in ring.take(batch, table.page_bytes):
                self._ops.read_pages(table, _blocks(part, self._device), pages)
                staged.append((part, pages))
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        self._jobs.put(_Job(number, staged, loads, ready))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._hashers.shutdown()
        if self._pinned:
            _runtime().cudaHostUnregister(self._memory.mapped.ctypes.data)

    def _ring(self, kind: int) -> _Ring:
        return self._out_states if self._is_state(kind) else self._out

    def _is_state(self, kind: int) -> bool:
        return self._memory.shape.num_states > 0 and kind == len(self._tables) - 1

    def _warm_up(self) -> None:
        """Compile the kernels: a block is read, and written to itself."""
        first = torch.zeros(1, dtype=torch.int64, device=self._device)
        for kind, table in enumerate(self._tables):
            buffer = self._in_states if self._is_state(kind) else self._in
            page = buffer[:1, : table.page_bytes]
            self._ops.read_pages(table, first, page)
            self._ops.write_pages(table, first, page)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(self._stream), torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                try:
                    job.ready.synchronize()
                    self._save(job)
                    self._load(job)
                except Exception:  # pages are lost, and no request: their tokens are computed
                    logger.exception("pages of the KV cache could not be copied")
                    for move in job.loads:
                        self._memory.spoil(move.row, job.number)
                self._memory.finish(job.number)

    def _save(self, job: _Job) -> None:
        began, stored = self._clock(), 0
        for batch, _ in job.staged:
            self._rows.void(batch)
        for batch, staged in job.staged:
            for rows, pages in self._rows.runs(batch, staged):
                rows.copy_(pages, non_blocking=True)
            stored += staged.nbytes
        self._stream.synchronize()
        sums = [
            self._hashers.submit(self._rows.sum_up, move.row, staged.shape[1])
            for batch, staged in job.staged
            for move in batch
        ]
        _finish(sums)
        if stored:
            self._memory.count(stored=stored, seconds=self._clock() - began)

    def _load(self, job: _Job) -> None:
        began, loaded = self._clock(), 0
        checks: list[Future[None]] = []
        for kind, moves in groupby(job.loads, itemgetter(0)):
            buffer = self._in_states if self._is_state(kind) else self._in
            table = self._tables[kind]
            for batch in _batches(list(moves), len(buffer)):
                checks += [self._check(job.number, move, table.page_bytes) for move in batch]
                staged = buffer[: len(batch), : table.page_bytes]
                for rows, pages in self._rows.runs(batch, staged):
                    pages.copy_(rows, non_blocking=True)
                self._ops.write_pages(table, _blocks(batch, self._device), staged)
                self._stream.synchronize()
                loaded += staged.nbytes
        _finish(checks)
        if loaded:
            self._memory.count(loaded=loaded, seconds=self._clock() - began)

    def _check(self, number: int, move: Move, size: int) -> Future[None]:
        """Compare a row's checksum while rows are copied: the core hears of both."""
        return self._hashers.submit(self._rows.check, number, [move], size)


def _finish(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


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
        left = list(batch)
        while left:
            count = min(len(left), self.size - self._next)
            part, left = left[:count], left[count:]
            yield part, self._rows[self._next : self._next + count, :page_bytes]
            self._next = (self._next + count) % self.size


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


def _blocks(moves: Sequence[Move], device: torch.device | None = None) -> torch.Tensor:
    blocks = torch.tensor([move.block for move in moves], dtype=torch.int64)
    return blocks if device is None else blocks.to(device)


def _batches(moves: Sequence[Move], most: int) -> Iterator[list[Move]]:
    """Yield moves of one kind that follow one another, at most so many at once."""
    for _, group in groupby(moves, itemgetter(0)):
        while batch := list(islice(group, most)):
            yield batch
