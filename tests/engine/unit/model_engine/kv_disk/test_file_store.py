"""A store of files moves rows to the byte, stays below its size, and survives every fault.

Faults are injected into the calls of the operating system, each at each of them; a store that is
switched off says so once, and works again later. Several stores share a folder, in one process and
in several, and with rows of any number of ranks.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.errors import ConfigError
from atom.model_engine.kv_disk import page_file
from atom.model_engine.kv_disk.disk_faults import DiskFaults
from atom.model_engine.kv_disk.disk_folder import ROOT, DiskFolder, check_folder
from atom.model_engine.kv_disk.disk_moves import FileMove, FilesMoved
from atom.model_engine.kv_disk.file_store import FileStore, StoreTimes
from atom.model_engine.kv_disk.page_names import block_name
from atom.model_engine.page_moves import HostRows
from atom.model_engine.runner.pages.canonical_pages import CanonicalPage, Heads, Part, Share
from atom.model_engine.runner.pages.file_rows import FileRows
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.page_sums import HostSums
from atom.sizing.host_tier import HostTier
from atom.utils.unnamed_memory import unnamed_memory
from tests.support.waiting import HANG_SECONDS, wait_until

LAYOUTS = {"a": "0123456789abcdef" * 2, "b": "f" * 32}
ROW = 256
FILE = 64 + ROW
ROWS = 64


class Rows:
    def __init__(self) -> None:
        self._rows = [bytearray(ROW) for _ in range(ROWS)]

    def page_bytes(self, kind: int) -> int:
        return ROW

    def page(self, kind: int, row: int) -> memoryview:
        return memoryview(self._rows[row])

    def buffer(self, kind: int, row: int) -> memoryview:
        return memoryview(self._rows[row])

    def fill(self, kind: int, row: int) -> None:
        pass


def rows_of(ranks: int) -> HostRows:
    """The product's rows of several ranks, with the heads of two tensors: 4 of 12 bytes for each of
    4 tokens, and 64 bytes that every rank has. One rank has the bytes of a file."""
    if ranks == 1:
        return Rows()
    divided = 4 * 4 * 12 // ranks
    shape = HostTier(ROWS, divided + 64, 0, 0, ranks, 0)
    rows = FileRows(HostMemory(unnamed_memory("test"), shape, 0))
    shares = [Share(rank, ranks) for rank in range(ranks)]
    parts = [
        (Part(Heads.of(4, each), 4, 12, 0, 0), Part(Heads.whole(each), 1, 64, 192, divided))
        for each in shares
    ]
    rows.bind([[CanonicalPage(each)] for each in parts], HostSums())
    return rows


def content(number: int) -> bytes:
    return random.Random(number).randbytes(ROW)


def move_of(number: int, row: int) -> FileMove:
    return FileMove(block_name(number, 7, b"tokens"), row, 0, 16)


def files_of(root: Path) -> list[Path]:
    """The pages that are there now; os.walk passes over folders that stores remove."""
    found = (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
    return [path for path in found if path.suffix == ".page" and path.exists()]


class World:
    """A store that is called as the scheduler calls it, one call at a time."""

    def __init__(
        self, root: Path, pages: float = 1000, off_seconds: float = 0.05, ranks: int = 1
    ) -> None:
        self.rows, self.number = rows_of(ranks), 0
        self.faults = DiskFaults(str(root), off_seconds)
        folder = DiskFolder(root, LAYOUTS["a"], int(pages * FILE), time.time)
        self.store = FileStore(
            folder, self.rows, self.faults, layout_of=LAYOUTS.__getitem__,
            times=StoreTimes(list_seconds=0.02, slow_seconds=0.5),
        )  # fmt: skip

    def _moved(self) -> FilesMoved:
        while True:
            self.store.wait()
            for moved in self.store.take_moved():
                if moved.number == self.number:
                    return moved

    def write(self, *numbers: int) -> list[bool]:
        self.number += 1
        for row, number in enumerate(numbers):
            self.rows.buffer(0, row)[:] = content(number)
            self.rows.fill(0, row)
        self.store.write(self.number, [move_of(n, row) for row, n in enumerate(numbers)])
        return self._moved().whole

    def read(self, *numbers: int) -> list[bool]:
        """Whether each is there; what is there is compared."""
        self.number += 1
        self.store.read(self.number, [move_of(n, row) for row, n in enumerate(numbers)])
        whole = self._moved().whole
        for row, (number, is_there) in enumerate(zip(numbers, whole, strict=False)):
            assert not is_there or self.rows.page(0, row) == content(number)
        return whole

    def holds(self, number: int) -> bool:
        return self.store.holds(move_of(number, 0).name)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(root: Path = tmp_path, **options: Any) -> World:
        made.append(World(root, **options))
        return made[-1]

    yield make
    for world in made:
        world.store.close()


def test_rows_return_in_another_store(worlds: Callable[..., World]) -> None:
    first = worlds()
    assert first.write(*range(20)) == [True] * 20
    assert all(first.holds(number) for number in range(20))
    second = worlds()
    assert all(second.holds(number) for number in range(20)), "a start lists the folder"
    assert not second.holds(20)
    assert second.read(*range(21)) == [True] * 20 + [False]
    totals = second.store.totals()
    assert totals.load_bytes == 20 * FILE
    assert totals.load_seconds > 0
    assert second.store.waiting_bytes == 0
    first.write(20)
    wait_until(lambda: second.holds(20), "another server's page is listed")


def test_stores_of_other_numbers_of_ranks_read_each_others_files(
    worlds: Callable[..., World],
) -> None:
    numbers = [1, 2, 4]
    made = [worlds(ranks=ranks) for ranks in numbers]
    for at, world in enumerate(made):
        assert world.write(*range(10 * at, 10 * at + 10)) == [True] * 10
    for world in made:
        assert world.read(*range(30)) == [True] * 30
        assert world.store.totals().errors == ()


def test_a_row_that_is_damaged_in_memory_reaches_no_file(worlds: Callable[..., World]) -> None:
    world = worlds(ranks=2)
    world.write(1)
    world.rows._memory.parts_of_ranks(0)[1, 3] ^= 8
    world.number += 1
    world.store.write(world.number, [move_of(2, 0)])
    assert world._moved().whole == [False]
    assert not world.holds(2)
    assert world.store.totals().errors == (), "the disk is well"


def test_the_size_holds_over_stores_and_the_longest_unused_go_first(
    worlds: Callable[..., World], tmp_path: Path
) -> None:
    stores = [worlds(pages=20) for _ in range(3)]

    def fits() -> bool:
        return len(files_of(tmp_path)) <= 20

    for number in range(90):
        stores[number % 3].write(number)
        wait_until(fits, "the folder is below its size")
        if number > 3:
            assert stores[0].read(3) == [True]
    assert stores[1].read(3) == [True], "a page that is used stays"
    assert stores[1].read(5) == [False]


def test_other_layouts_count_and_are_not_read(worlds: Callable[..., World], tmp_path: Path) -> None:
    world = worlds()
    world.write(1, 2)
    world.store.retarget("b")
    assert not world.holds(1)
    assert world.read(1) == [False]
    assert world.write(1) == [True]
    assert len(list((tmp_path / ROOT).iterdir())) == 2
    wait_until(lambda: world.store.totals().used_bytes == 3 * FILE, "all layouts are counted")
    world.store.clear()
    wait_until(lambda: len(files_of(tmp_path)) == 2, "its own pages alone are gone")


def test_a_page_that_vanishes_is_gone_and_no_fault(worlds: Callable[..., World]) -> None:
    one, other = worlds(), worlds()
    one.write(1)
    wait_until(lambda: other.holds(1), "it is listed")
    other.store.forget([move_of(1, 0).name])
    wait_until(lambda: other.read(1) == [False], "it is removed")
    assert one.read(1) == [False]
    assert not one.holds(1)
    assert move_of(1, 0).name in one.store.take_gone()
    assert one.store.totals().errors == ()


FAULTS = {
    errno.ENOSPC: "no_space", errno.EDQUOT: "no_space", errno.EIO: "io_error",
    errno.EROFS: "read_only", errno.EACCES: "permission", errno.EPERM: "permission",
    errno.ESTALE: "missing", errno.EMFILE: "io_error",
}  # fmt: skip
CALLS = {
    "write": ("open", "write", "close", "replace", "mkdir"),
    "read": ("open", "readv", "fstat", "close"),
}
CASES = [
    (kind, call, number) for kind, calls in CALLS.items() for call in calls for number in FAULTS
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("kind", "call", "number"), CASES)
def test_a_fault_switches_the_tier_off_and_is_said_once(
    kind: str,
    call: str,
    number: int,
    worlds: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = worlds(off_seconds=0.1)
    assert world.write(1) == [True]
    broken = [True]
    target: Any = Path if call in ("replace", "mkdir") else page_file.os
    real = getattr(target, call)

    def failing(*args: Any, **kwargs: Any) -> Any:
        mine = call == "close" or "kv-disk" in str(_thread_name())
        if broken[0] and mine and "keeper" not in _thread_name():
            if call == "close":
                real(*args, **kwargs)
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    if call == "close":  # other threads close files, too
        monkeypatch.setattr(page_file, "os", _Os(failing))
    else:
        monkeypatch.setattr(target, call, failing)
    caplog.set_level(logging.WARNING)
    done = world.write(2, 3) if kind == "write" else world.read(1, 2)
    assert done == [False, False]
    assert not world.holds(1), "it is switched off"
    assert dict(world.store.totals().errors) == {FAULTS[number]: 1}
    for _ in range(3):  # it is tried again, and fails again
        wait_until(lambda: not world.store.is_off, "it is tried again")
        world.write(2) if kind == "write" else world.read(1)
    assert len(caplog.records) == 1, caplog.text
    assert "switched off" in caplog.text
    broken[0] = False
    wait_until(lambda: not world.store.is_off, "it is used again")
    assert world.write(2) == [True]
    assert world.read(1, 2) == [True, True]


def _thread_name() -> str:
    return threading.current_thread().name


class _Os:
    """The module os with another close."""

    def __init__(self, close: Callable[..., Any]) -> None:
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_folder_that_vanishes_switches_the_tier_off_until_it_is_back(
    worlds: Callable[..., World], tmp_path: Path
) -> None:
    root = tmp_path / "mount"
    root.mkdir()
    world = worlds(root)
    world.write(1)
    root.rename(tmp_path / "away")
    assert world.read(1) == [False]
    assert world.store.is_off
    assert not root.exists(), "nothing is written beside a mount"
    (tmp_path / "away").rename(root)
    wait_until(lambda: world.holds(1), "it is used again")
    assert world.read(1) == [True]


def test_a_disk_that_hangs_is_given_up(
    worlds: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, go_on = worlds(off_seconds=60), threading.Event()
    world.write(1)
    real = page_file.os.readv
    monkeypatch.setattr(page_file.os, "readv", lambda *args: (go_on.wait(20), real(*args))[1])
    world.number += 1
    world.store.read(world.number, [move_of(1, 0)])
    late = world._moved()
    assert late == FilesMoved(world.number, [], is_late=True)
    assert dict(world.store.totals().errors) == {"slow": 1}
    go_on.set()
    assert world._moved() == FilesMoved(world.number, [True])


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_folder(tmp_path)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        check_folder(tmp_path)


_AS_COPY = (sys.executable, "-m", "tests.support.preloaded.script")
_PROCESS = """
import sys, pathlib, random
sys.path[:0] = {path!r}
from tests.engine.unit.model_engine.kv_disk.test_file_store import World
world, draw = World(pathlib.Path({root!r}), pages=30, ranks={ranks}), random.Random({seed})
wrong = 0
for _ in range(300):
    numbers = draw.sample(range(60), 4)
    world.write(*numbers[:2])
    world.read(*numbers)
print(world.store.totals().errors)
world.store.close()
"""


@pytest.mark.parametrize("ranks", [(1, 1), pytest.param((1, 2, 4, 2), marks=pytest.mark.whole)])
def test_processes_share_a_folder(
    ranks: tuple[int, ...], tmp_path: Path, worlds: Callable[..., World]
) -> None:
    """Every read compares its bytes; pages are removed by all of them meanwhile, and one process is
    killed."""
    scripts = [
        _PROCESS.format(path=sys.path, root=str(tmp_path), seed=seed, ranks=count)
        for seed, count in enumerate(ranks)
    ]
    running = [
        subprocess.Popen([*_AS_COPY, each], stdout=subprocess.PIPE, text=True) for each in scripts
    ]
    world, draw = worlds(pages=30, ranks=4), random.Random(9)
    for turn in range(200):
        world.read(*draw.sample(range(60), 8))
        if turn == 60:
            running[0].kill()
    for each in running[1:]:
        told, _ = each.communicate(timeout=HANG_SECONDS)
        assert each.returncode == 0
        assert told.strip() == "()", "no page was damaged"
    running[0].communicate()
    assert world.store.totals().errors == ()
