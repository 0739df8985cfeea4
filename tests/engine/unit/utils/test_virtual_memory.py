"""Memory whose addresses outlive it, over a driver that is played: what is given back is given back
once, and a call that fails leaves nothing behind."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.utils.c_library import BuildError, built_library, find_toolchain
from atom.utils.virtual_memory.pool import SOURCES

MIB = 1 << 20
# Pieces of memory and what is behind each MiB of addresses; `fail_at`: the call to MemCreate that
# finds too little memory.
DRIVER = """
#include <stddef.h>
typedef unsigned long long address_t;
enum { BASE = 1 << 30, UNIT = 1 << 20, MOST = 4096 };
int live, calls, fail_at = -1, faults, relaxed;
static address_t behind[MOST];
static size_t sizes[MOST], reserved;
int cuMemGetAllocationGranularity(size_t *unit, const void *p, int f) { *unit = UNIT; return 0; }
int cuMemAddressReserve(address_t *at, size_t bytes, size_t a, address_t w, unsigned long long f) {
  *at = BASE + reserved; reserved += bytes; return 0;
}
int cuMemCreate(address_t *handle, size_t bytes, const void *p, unsigned long long f) {
  if (calls++ == fail_at) return 2;
  live++; *handle = calls; sizes[calls % MOST] = bytes; return 0;
}
int cuMemMap(address_t at, size_t bytes, size_t o, address_t handle, unsigned long long f) {
  if (bytes != sizes[handle % MOST]) faults++;
  for (size_t i = 0; i < bytes / UNIT; i++) {
    if (behind[(at - BASE) / UNIT + i]) faults++;
    behind[(at - BASE) / UNIT + i] = handle;
  }
  return 0;
}
int cuMemSetAccess(address_t at, size_t bytes, const void *d, size_t n) {
  for (size_t i = 0; i < bytes / UNIT; i++) if (!behind[(at - BASE) / UNIT + i]) faults++;
  return 0;
}
int cuMemUnmap(address_t at, size_t bytes) {
  for (size_t i = 0; i < bytes / UNIT; i++) {
    if (!behind[(at - BASE) / UNIT + i]) faults++;
    behind[(at - BASE) / UNIT + i] = 0;
  }
  return 0;
}
int cuMemRelease(address_t handle) { live--; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { if (*mode == 2) relaxed++; *mode = 0; return 0; }
"""


class Rig:
    """The library over the driver, with one pool of 64 MiB whose chunks are of 4 MiB."""

    def __init__(self, library: Path, driver: Path) -> None:
        self.driver = ctypes.CDLL(str(driver))
        self.library: Any = ctypes.CDLL(str(library))
        self.library.vm_problem.restype = ctypes.c_char_p
        self.library.vm_unmapped_bytes.restype = ctypes.c_size_t
        self.library.vm_pool.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        assert self.library.vm_open(str(driver).encode(), b"cu") == 0
        self.pool: int = self.new_pool()

    def new_pool(self) -> int:
        number: int = self.library.vm_pool(0, 64 * MIB, 4 * MIB)
        return number

    def allocate(self, size: int) -> int | None:
        call = self.library[f"vm_allocate_{self.pool:02o}"]
        call.restype = ctypes.c_void_p
        call.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        found: int | None = call(size, 0, None)
        return found

    def free(self, address: int) -> None:
        self.library.vm_free.argtypes = [
            ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p,
        ]  # fmt: skip
        self.library.vm_free(address, 0, 0, None)

    def counter(self, name: str) -> ctypes.c_int:
        return ctypes.c_int.in_dll(self.driver, name)

    @property
    def live(self) -> int:
        return self.counter("live").value

    @property
    def problem(self) -> str:
        return str(self.library.vm_problem().decode())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The library's file, and the driver's."""
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("driver")
    source, driver = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    command = [toolchain.compiler, "-shared", "-fPIC", "-o", str(driver), str(source)]
    subprocess.run(command, check=True)
    with built_library(SOURCES, toolchain) as path:
        yield path, driver


@pytest.fixture
def rig(files: tuple[Path, Path], tmp_path: Path) -> Iterator[Rig]:
    """Each test has the files' state for itself."""
    rig = Rig(*(Path(shutil.copy(file, tmp_path / f"own-{file.name}")) for file in files))
    yield rig
    assert rig.counter("faults").value == 0


def test_addresses_stay_while_the_memory_comes_and_goes(rig: Rig) -> None:
    first, second = rig.allocate(10 * MIB), rig.allocate(MIB // 2)
    assert first is not None
    assert second == first + 10 * MIB
    assert rig.live == 4, "10 MiB in chunks of 4, and one of half a MiB"
    for _ in range(3):
        assert rig.library.vm_unmap(rig.pool) == 0
        assert rig.library.vm_unmap(rig.pool) == 0, "once more changes nothing"
        assert (rig.live, rig.library.vm_unmapped_bytes(rig.pool)) == (0, 11 * MIB)
        assert rig.library.vm_map(rig.pool) == 0
        assert (rig.live, rig.library.vm_unmapped_bytes(rig.pool)) == (4, 0)
    rig.free(first)
    assert rig.live == 1
    third = rig.allocate(MIB)
    assert third == second + MIB, "addresses are not handed out again"
    assert rig.counter("relaxed").value == 3, "a graph may be captured meanwhile"


def test_what_was_given_back_may_be_freed(rig: Rig) -> None:
    address = rig.allocate(3 * MIB)
    assert address is not None
    rig.library.vm_unmap(rig.pool)
    rig.free(address)
    assert (rig.live, rig.library.vm_unmapped_bytes(rig.pool)) == (0, 0)


@pytest.mark.parametrize("call", range(5))
def test_too_little_memory_leaves_nothing_behind(rig: Rig, call: int) -> None:
    """Whichever chunk it was; who waits takes the memory later."""
    for size in (9, 7):
        rig.allocate(size * MIB)
    rig.library.vm_unmap(rig.pool)
    rig.counter("fail_at").value = rig.counter("calls").value + call
    assert rig.library.vm_map(rig.pool) == -1
    assert "MemCreate ended with code 2" in rig.problem
    assert rig.live in (0, 3), "a block is there whole, or not at all"
    rig.counter("fail_at").value = -1
    assert rig.library.vm_map(rig.pool) == 0
    assert rig.live == 5


def test_a_failed_allocation_is_none(rig: Rig) -> None:
    rig.counter("fail_at").value = 1
    assert rig.allocate(6 * MIB) is None
    assert rig.live == 0
    assert rig.allocate(65 * MIB) is None
    assert "no addresses left" in rig.problem


def test_a_process_has_so_many_pools(rig: Rig) -> None:
    numbers = [rig.new_pool() for _ in range(63)]
    assert numbers == list(range(1, 64))
    assert rig.new_pool() == -1
    assert "64 pools at most" in rig.problem
    rig.pool = 63
    assert rig.allocate(MIB) is not None


def test_a_driver_without_such_memory_is_named(rig: Rig, tmp_path: Path) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int cuInit(int flags) { return flags; }")
    subprocess.run(
        [find_toolchain().compiler, "-shared", "-fPIC", "-o", str(other), str(source)], check=True
    )
    assert rig.library.vm_open(str(other).encode(), b"cu") == -1
    assert rig.problem == "the driver has no cuMemGetAllocationGranularity"
    assert rig.library.vm_open(b"/nothing/here.so", b"cu") == -1
    assert "/nothing/here.so" in rig.problem
