"""Memory through which pages reach a consumer of the same host: each page is read as it was
written, whatever the sizes and however late it is used, and a hostile peer reads nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from atom.model_engine.kv_transfer import page_ring
from atom.model_engine.kv_transfer.frames import FrameError
from atom.model_engine.kv_transfer.memory_offers import fetch_memory
from atom.model_engine.kv_transfer.page_ring import HostRing, PageWindow, map_window

_BYTES = 16 * 4096


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> tuple[HostRing, PageWindow]:
    monkeypatch.setattr(page_ring, "_LEAST_BYTES", _BYTES)
    ring = HostRing(4096)
    return ring, map_window(os.dup(ring.descriptor))


@pytest.mark.parametrize("seed", range(30))
def test_pages_are_read_as_they_were_written(ends: tuple[HostRing, PageWindow], seed: int) -> None:
    ring, window = ends
    dice = random.Random(seed)
    held: list[tuple[int, memoryview, bytes]] = []
    written = full = 0
    for _ in range(600):
        page = dice.randbytes(dice.choice((1, 100, 4096, 9000)))
        position = ring.write(page)
        if position is None:
            full += 1
            assert held, "an empty ring has room"
        else:
            written += 1
            read = window.page(position, len(page))
            assert read is not None
            held.append((position, read, page))
        while held and dice.random() < 0.5:
            # Mostly in order; a page may be used before an earlier one.
            number = 0 if dice.random() < 0.8 else dice.randrange(len(held))
            position, read, expected = held.pop(number)
            assert bytes(read) == expected
            ring.used(window.use(position))
        assert all(bytes(read) == expected for _, read, expected in held)
    assert written > 100
    assert full


def test_a_page_that_came_before_is_not_read_again(ends: tuple[HostRing, PageWindow]) -> None:
    ring, window = ends
    position = ring.write(b"page")
    assert position is not None
    assert window.page(position, 4) is not None
    assert window.page(position, 4) is None, "it is being used"
    ring.used(window.use(position))
    assert window.page(position, 4) is None, "its place may have been written over"


def test_places_outside_the_memory_end_the_connection(ends: tuple[HostRing, PageWindow]) -> None:
    ring, window = ends
    with pytest.raises(FrameError, match="a page of 2 bytes"):
        window.page(_BYTES - 1, 2)
    with pytest.raises(FrameError, match="of 0 that were written"):
        ring.used(1)


def test_memory_that_could_become_shorter_is_not_mapped() -> None:
    descriptor = os.memfd_create("unsealed")
    os.ftruncate(descriptor, _BYTES)
    with pytest.raises(OSError, match="not sealed"):
        map_window(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_producer_cannot_make_mapped_memory_shorter(
    ends: tuple[HostRing, PageWindow],
) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(ends[0].descriptor, 0)


_PRODUCER = """
import asyncio
from atom.model_engine.kv_transfer.memory_offers import MemoryOffers
async def serve():
    offers = MemoryOffers(4096)
    key, ring = offers.offer()
    ring.write(b"a page")
    print(offers.name, key, flush=True)
    await offers.serve()
asyncio.run(serve())
"""


def test_nothing_is_left_of_a_killed_producer() -> None:
    """Neither a file nor a socket; a consumer that has mapped the memory still reads it."""
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-c", _PRODUCER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as producer:
        assert producer.stdout is not None
        name, key = producer.stdout.readline().split()
        with pytest.raises(OSError, match="no memory for this connection"):
            fetch_memory(name, "0" * 32)
        window = map_window(fetch_memory(name, key))
        assert name in Path("/proc/net/unix").read_text()
        producer.kill()
    page = window.page(0, 6)
    assert page is not None
    assert bytes(page) == b"a page"
    assert name not in Path("/proc/net/unix").read_text()
    assert not [file for file in set(Path("/dev/shm").iterdir()) - before if "atom" in file.name]
    with pytest.raises(OSError, match="refused"):
        fetch_memory(name, key)
