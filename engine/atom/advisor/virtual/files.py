"""VirtualFiles: the files behind a host's tier of the KV cache, whose moves only take time.

They take the place of a FileStore behind the engine's own KVTiers. Reads are made one after the
other at the disk's rate, and so are writes. A file is findable once it is written; those that were
used longest ago are removed above the size. Used by the simulation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from atom.advisor.extras import Adapters
from atom.advisor.virtual.executor import VirtualClock
from atom.model_engine.kv_disk.disk_moves import DiskTotals, FileMove, FilesMoved
from atom.model_engine.kv_disk.page_names import PageNames
from atom.sizing.host_tier import HostTier

_NO_DESCRIPTOR = -1  # nothing waits for a virtual disk


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a node. size_bytes: of the files of one copy of a model; bytes_per_second: in each
    direction."""

    size_bytes: int
    bytes_per_second: float


@dataclass(slots=True)
class _Calls:
    """The calls of one direction. free_at: when the last one ends; bytes_moved: of all."""

    free_at: float = 0.0
    bytes_moved: int = 0

    def begin(self, now: float, size_bytes: int, rate: float) -> float:
        """Return when a call that begins now ends."""
        self.free_at = max(now, self.free_at) + size_bytes / rate
        self.bytes_moved += size_bytes
        return self.free_at


class VirtualFiles:
    """Implements DiskStore."""

    is_off = False
    wake_fd = _NO_DESCRIPTOR

    def __init__(
        self, disk: Disk, host: HostTier, clock: VirtualClock, adapters: Adapters | None = None
    ) -> None:
        """adapters: whose pages have names, too."""
        self.names = PageNames()
        for number in range(1, 1 + (adapters.count if adapters is not None else 0)):
            self.names.note_adapter(number, str(number))
        self._disk, self._host, self._clock = disk, host, clock
        self._files: OrderedDict[bytes, int] = OrderedDict()  # the longest ago used first
        self._used_bytes = 0
        self._reads, self._writes = _Calls(), _Calls()
        self._under_way: dict[int, tuple[float, Sequence[FileMove], bool]] = {}
        self._gone: list[bytes] = []

    @property
    def next_end(self) -> float | None:
        """Return when the next call ends; None if none is under way."""
        return min((ends_at for ends_at, _, _ in self._under_way.values()), default=None)

    @property
    def has_moved(self) -> bool:
        ends_at = self.next_end
        return ends_at is not None and ends_at <= self._clock.now

    def holds(self, name: bytes) -> bool:
        return name in self._files

    def retarget(self, weights: str) -> None:
        """Do nothing: a simulated engine keeps its weights."""

    def write(self, number: int, moves: Sequence[FileMove]) -> None:
        self._begin(self._writes, number, moves, is_read=False)

    def read(self, number: int, moves: Sequence[FileMove]) -> None:
        self._begin(self._reads, number, moves, is_read=True)

    def forget(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._remove(name)

    def clear(self) -> None:
        self.forget(list(self._files))

    def take_moved(self) -> list[FilesMoved]:
        """Return the calls whose time is over, in the order of their ends."""
        now = self._clock.now
        ended = sorted(
            (ends_at, number)
            for number, (ends_at, _, _) in self._under_way.items()
            if ends_at <= now
        )
        return [self._end(number) for _, number in ended]

    def take_gone(self) -> list[bytes]:
        gone, self._gone = self._gone, []
        return gone

    @property
    def waiting_bytes(self) -> int:
        reads = (moves for _, moves, is_read in self._under_way.values() if is_read)
        return sum(self._bytes(move) for moves in reads for move in moves)

    def totals(self) -> DiskTotals:
        rate, reads, writes = self._disk.bytes_per_second, self._reads, self._writes
        return DiskTotals(
            len(self._files),
            self._used_bytes,
            self._disk.size_bytes,
            *(reads.bytes_moved, reads.bytes_moved / rate),
            *(writes.bytes_moved, writes.bytes_moved / rate),
            (),
        )

    def close(self) -> None:
        """Do nothing: nothing outlives the simulation."""

    def wait(self) -> None:
        """Move the clock to the end of the next call."""
        ends_at = self.next_end
        if ends_at is not None:
            self._clock.advance_to(ends_at)

    def _begin(
        self, calls: _Calls, number: int, moves: Sequence[FileMove], *, is_read: bool
    ) -> None:
        size_bytes = sum(map(self._bytes, moves))
        ends_at = calls.begin(self._clock.now, size_bytes, self._disk.bytes_per_second)
        self._under_way[number] = ends_at, moves, is_read

    def _end(self, number: int) -> FilesMoved:
        _, moves, is_read = self._under_way.pop(number)
        if is_read:
            whole = [move.name in self._files for move in moves]
            for move in moves:
                if move.name in self._files:
                    self._files.move_to_end(move.name)
            return FilesMoved(number, whole)
        for move in moves:
            self._used_bytes += self._bytes(move) - self._files.pop(move.name, 0)
            self._files[move.name] = self._bytes(move)
        while self._used_bytes > self._disk.size_bytes:
            self._remove(next(iter(self._files)))
        return FilesMoved(number, [move.name in self._files for move in moves])

    def _remove(self, name: bytes) -> None:
        size_bytes = self._files.pop(name, None)
        if size_bytes is not None:
            self._used_bytes -= size_bytes
            self._gone.append(name)

    def _bytes(self, move: FileMove) -> int:
        """Return the bytes of a page of all ranks, or of a checkpoint, whose rows follow."""
        host = self._host
        is_page = move.row < host.num_pages
        return (host.page_bytes if is_page else host.state_bytes) * host.ranks
