"""PagedFiles: a DiskStore without a disk, between the rows of a PagedMover and a table.

Calls are carried out when they begin, and end after a number of looks, in any order. Pages may be
missing or damaged when they are read, writes may be dropped, calls may be late, and the store may
be switched off, all by a seed. Several stores may share one table, as servers share a folder.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from atom.model_engine.kv_disk.disk_moves import DiskTotals, FileMove, FilesMoved
from atom.model_engine.kv_disk.page_names import PageNames
from tests.support.engine_core.paged_mover import PagedMover


@dataclass
class PagedFiles:
    """steps: until a call ends, at most; lost_share: of pages that are read, dropped_share: of
    pages that are written, late_share: of calls; off_share: of looks at which the store is switched
    on or off; page_seconds: of reading a page, as it is reported; table: of the files."""

    mover: PagedMover
    steps: int = 0
    lost_share: float = 0.0
    dropped_share: float = 0.0
    late_share: float = 0.0
    off_share: float = 0.0
    page_seconds: float = 0.0
    seed: int = 0
    table: dict[bytes, list[int]] = field(default_factory=dict)
    read_total: int = 0
    read_seconds: float = 0.0
    written_total: int = 0
    is_off: bool = False

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self.names = PageNames()
        self._ends: list[tuple[int, FilesMoved]] = []  # looks that are left, and the end
        self._gone: list[bytes] = []
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def waiting_bytes(self) -> int:
        return 0

    def holds(self, name: bytes) -> bool:
        return not self.is_off and name in self.table

    # ---- calls ---------------------------------------------------------------------------------

    def write(self, number: int, moves: Sequence[FileMove]) -> None:
        whole = [not self._happens(self.dropped_share) for _ in moves]
        for move, kept in zip(moves, whole, strict=True):
            if kept:
                self.table[move.name] = list(self.mover.rows[move.row])
                self.written_total += 1
        self._end(FilesMoved(number, whole))

    def read(self, number: int, moves: Sequence[FileMove]) -> None:
        whole = []
        for move in moves:
            content = self.table.get(move.name)
            if content is not None and self._happens(self.lost_share):
                del self.table[move.name]
                self._gone.append(move.name)
                content = None
            whole.append(content is not None)
            # A torn read leaves anything in the row.
            self.mover.rows[move.row] = list(content) if content else [-2] * 64
            self.read_total += content is not None
            self.read_seconds += self.page_seconds
        self._end(FilesMoved(number, whole))

    def forget(self, names: Sequence[bytes]) -> None:
        for name in names:
            if self.table.pop(name, None) is not None:
                self._gone.append(name)

    def clear(self) -> None:
        self.table.clear()

    def retarget(self, weights: str) -> None:
        self.table = {}

    # ---- ends ----------------------------------------------------------------------------------

    @property
    def has_moved(self) -> bool:
        self._tick()
        return any(not left for left, _ in self._ends)

    def take_moved(self) -> list[FilesMoved]:
        self._tick()
        ended = [end for left, end in self._ends if not left]
        self._ends = [each for each in self._ends if each[0]]
        return ended

    def take_gone(self) -> list[bytes]:
        gone, self._gone = self._gone, []
        return gone

    def wait(self) -> None:
        while not self.has_moved:
            pass

    def totals(self) -> DiskTotals:
        return DiskTotals(
            len(self.table), 0, 0, self.read_total, self.read_seconds,
            self.written_total, 0.0, (),
        )  # fmt: skip

    def close(self) -> None:
        os.close(self.wake_fd)

    def _end(self, moved: FilesMoved) -> None:
        left = self._draw.randint(0, self.steps)
        if self._happens(self.late_share):
            self._ends.append((left, FilesMoved(moved.number, [], is_late=True)))
            left += self.steps + 1
        self._ends.append((left, moved))

    def _tick(self) -> None:
        if self._happens(self.off_share * (5 if self.is_off else 1)):
            self.is_off = not self.is_off
        self._ends = [(max(0, left - 1), end) for left, end in self._ends]

    def _happens(self, share: float) -> bool:
        return share > 0 and self._draw.random() < share
