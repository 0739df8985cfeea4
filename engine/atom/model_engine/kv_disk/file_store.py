"""FileStore: the threads that move pages between rows of the host's memory and page files.

The core's thread begins calls and takes their ends; it never waits for the disk. Readers and
writers have threads of their own, so a read does not wait behind writes. A keeper lists the folder,
removes files beyond the size, tries a tier again that was switched off, and gives up on calls that
take too long: the core goes on, and hears of the true end later. Implements DiskStore.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from atom.model_engine.kv_disk.busy_time import BusyTime
from atom.model_engine.kv_disk.disk_faults import SLOW, DiskFaults, kind_of
from atom.model_engine.kv_disk.disk_folder import DiskFolder
from atom.model_engine.kv_disk.disk_moves import DiskTotals, FileMove, FilesMoved
from atom.model_engine.kv_disk.page_file import (
    DamagedPageError,
    PageLabel,
    read_page,
    write_page,
)
from atom.model_engine.kv_disk.page_names import PageNames
from atom.model_engine.page_moves import HostRows

_READERS, _WRITERS = 4, 2
LIST_SECONDS = 5.0
_LIST_SHARE = 20  # listing takes at most one of so many parts of the keeper's time
SLOW_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The seconds between listings of the folder, and those after which a call takes too long."""

    list_seconds: float = LIST_SECONDS
    slow_seconds: float = SLOW_SECONDS


@dataclass(frozen=True, slots=True)
class _Call:
    """Moves, and the folder of the layout that they were begun for."""

    number: int
    moves: Sequence[FileMove]
    folder: DiskFolder
    deadline: float
    reads: bool


_Queue = queue.SimpleQueue[_Call | Callable[[], None] | None]


class FileStore:
    def __init__(
        self,
        folder: DiskFolder,
        rows: HostRows,
        faults: DiskFaults,
        *,
        layout_of: Callable[[str], str],
        clock: Clock = time.monotonic,
        times: StoreTimes = StoreTimes(),
    ) -> None:
        """layout_of: returns the digest of the layout with the weights of a checkpoint; clock: in
        seconds, of deadlines and rates."""
        self._folder, self._rows, self._faults = folder, rows, faults
        self._layout_of, self._clock, self._times = layout_of, clock, times
        self.names = PageNames()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._moved: deque[FilesMoved] = deque()
        self._gone: deque[bytes] = deque()
        self._news = threading.Condition(self._lock)
        self._open: dict[int, _Call] = {}  # calls under way that are not late
        self._loads, self._stores = BusyTime(clock), BusyTime(clock)
        self._waiting_bytes = 0  # of reads under way
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._marks = 0
        self._ended = threading.Event()
        self._wake_keeper = threading.Event()
        self._reads: _Queue = queue.SimpleQueue()
        self._writes: _Queue = queue.SimpleQueue()
        self._threads = [
            *(self._thread("kv-disk-read", self._reads) for _ in range(_READERS)),
            *(self._thread("kv-disk-write", self._writes) for _ in range(_WRITERS)),
        ]
        self._list_now()
        self._next_list = clock() + times.list_seconds
        keeper = threading.Thread(target=self._keep, name="kv-disk-keeper", daemon=True)
        keeper.start()

    # ---- the core's thread ---------------------------------------------------------------------

    @property
    def is_off(self) -> bool:
        return self._faults.is_off

    def holds(self, name: bytes) -> bool:
        return not self._faults.is_off and name in self._folder.names

    def write(self, number: int, moves: Sequence[FileMove]) -> None:
        self._begin(self._writes, _Call(number, moves, self._folder, self._deadline, reads=False))

    def read(self, number: int, moves: Sequence[FileMove]) -> None:
        with self._lock:
            self._waiting_bytes += self._bytes_of(moves)
        self._begin(self._reads, _Call(number, moves, self._folder, self._deadline, reads=True))

    def forget(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._writes.put(partial(self._folder.forget, name))
        self._gone.extend(names)

    def clear(self) -> None:
        self._folder.names.clear()
        self._writes.put(self._folder.clear)

    def retarget(self, weights: str) -> None:
        """Keep pages of other weights from now on. Those of the earlier ones stay for the servers
        that have them. weights: the path of a checkpoint."""
        self._folder = self._folder.of_layout(self._layout_of(weights))
        try:
            self._folder.open()
        except OSError as error:
            self._fail(error)
        self._next_list = self._clock()
        self._wake_keeper.set()

    def take_moved(self) -> list[FilesMoved]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        with self._lock:
            taken = list(self._moved)
            self._moved.clear()
        return taken

    @property
    def has_moved(self) -> bool:
        return bool(self._moved)

    def take_gone(self) -> list[bytes]:
        gone = []
        while self._gone:
            gone.append(self._gone.popleft())
        return gone

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def totals(self) -> DiskTotals:
        folder = self._folder
        return DiskTotals(
            len(folder.names),
            folder.used_bytes,
            folder.size_bytes,
            *self._loads.totals(),
            *self._stores.totals(),
            tuple(sorted(self._faults.counts.items())),
        )

    def wait(self) -> None:
        with self._news:
            self._news.wait_for(lambda: bool(self._moved))

    def close(self) -> None:
        """Complete the writes that were begun, unless the disk takes too long, and stop."""
        for _ in range(_READERS):
            self._reads.put(None)
        for _ in range(_WRITERS):
            self._writes.put(None)
        deadline = self._clock() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        self._ended.set()
        self._wake_keeper.set()

    @property
    def _deadline(self) -> float:
        return self._clock() + self._times.slow_seconds

    def _bytes_of(self, moves: Sequence[FileMove]) -> int:
        return sum(self._rows.page_bytes(move.kind) for move in moves)

    def _begin(self, calls: _Queue, call: _Call) -> None:
        with self._lock:
            self._open[call.number] = call
        calls.put(call)

    # ---- threads -------------------------------------------------------------------------------

    def _thread(self, name: str, calls: _Queue) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=(calls,), name=name, daemon=True)
        thread.start()
        return thread

    def _serve(self, calls: _Queue) -> None:
        while (call := calls.get()) is not None:
            if not isinstance(call, _Call):
                try:
                    call()
                except OSError as error:
                    self._fail(error)
                continue
            whole = [False] * len(call.moves)
            with contextlib.suppress(_StopCallError):
                for at, move in enumerate(call.moves):
                    if self._faults.is_off:
                        break
                    one = self._load if call.reads else self._store
                    whole[at] = one(call.folder, move)
            if call.reads:
                with self._lock:
                    self._waiting_bytes -= self._bytes_of(call.moves)
            self._end(FilesMoved(call.number, whole))

    def _load(self, folder: DiskFolder, move: FileMove) -> bool:
        """Read a page; returns whether the row has it."""
        try:
            with self._loads.busy() as count:
                page = self._rows.buffer(move.kind, move.row)
                count(read_page(folder.path, _label(folder, move), page))
                self._rows.fill(move.kind, move.row)
        except DamagedPageError as error:
            with self._lock:
                self._faults.damage(str(error))
            return self._drop(folder, move)
        except FileNotFoundError as error:  # another server has removed it, or all
            if folder.path.is_dir():
                return self._drop(folder, move)
            raise self._fail(error) from error
        except OSError as error:
            raise self._fail(error) from error
        with self._lock:
            self._faults.moved()
        return True

    def _drop(self, folder: DiskFolder, move: FileMove) -> bool:
        try:
            folder.forget(move.name)
        except OSError as error:
            raise self._fail(error) from error
        self._gone.append(move.name)
        return False

    def _store(self, folder: DiskFolder, move: FileMove) -> bool:
        """Write a page; returns whether the file is there. A row that has been damaged is left for
        the ranks, which find and count it when they read it."""
        if folder.is_full:
            self._wake_keeper.set()
            return False
        with self._lock:
            self._marks += 1
            mark = f"{self._mark}-{self._marks}"
        try:
            with self._stores.busy() as count:
                page = self._rows.page(move.kind, move.row)
                if page is None:
                    return False
                size = write_page(folder.path, _label(folder, move), page, mark)
                count(size)
        except DamagedPageError as error:
            with self._lock:
                self._faults.damage(str(error))
            return self._drop(folder, move)
        except OSError as error:
            raise self._fail(error) from error
        folder.added(move.name, size)
        if folder.needs_listing:
            self._wake_keeper.set()
        with self._lock:
            self._faults.moved()
        return True

    def _end(self, moved: FilesMoved) -> None:
        with self._news:
            if not moved.is_late:
                self._open.pop(moved.number, None)
            self._moved.append(moved)
            self._news.notify_all()
        os.eventfd_write(self.wake_fd, 1)

    def _fail(self, error: OSError) -> _StopCallError:
        """Switch the tier off; returns the error that ends a call."""
        with self._lock:
            self._faults.fail(kind_of(error), str(error), self._clock())
        self._wake_keeper.set()
        return _StopCallError()

    # ---- the keeper ----------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._ended.is_set():
            self._wake_keeper.wait(min(self._times.list_seconds, self._times.slow_seconds) / 2)
            self._wake_keeper.clear()
            self._give_up_late()
            began = self._clock()
            tries = self._faults.may_try(began)
            is_due = began >= self._next_list or self._folder.needs_listing
            if tries or (is_due and not self._faults.is_off):
                self._list_now()
                took = self._clock() - began
                wait = max(self._times.list_seconds, _LIST_SHARE * took)
                self._next_list = self._clock() + wait

    def _list_now(self) -> None:
        """List the folder, and switch the tier on if it was off; off if that fails."""
        try:
            self._folder.open()
            self._gone.extend(self._folder.list_pages())
        except OSError as error:
            self._fail(error)
            return
        with self._lock:
            self._faults.works()

    def _give_up_late(self) -> None:
        """Let the core go on without the calls that take too long."""
        now = self._clock()
        with self._lock:
            late = [call for call in self._open.values() if call.deadline <= now]
            for call in late:
                del self._open[call.number]
            if late:
                self._faults.fail(SLOW, "a page took too long", now)
        for call in late:
            self._end(FilesMoved(call.number, [], is_late=True))


class _StopCallError(Exception):
    """Raised if the tier is switched off: the rest of a call is not moved."""


def _label(folder: DiskFolder, move: FileMove) -> PageLabel:
    return PageLabel(folder.layout, move.name, move.kind, move.tokens)
