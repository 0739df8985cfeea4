"""Copies beside the steps, without a card: a double of the runtime's streams and events.

What a card adds is the order of a stream, which the CPU keeps in any case; what is tested here is
all that the host does: places of the staging buffers, parts of batches, the thread, checksums and
progress. `DeviceCopies` and `PageCopies` do the same to the same cache.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.page_moves import Move
from atom.model_engine.runner.pages import device_copies
from atom.model_engine.runner.pages.device_copies import DeviceCopies, Staging
from atom.model_engine.runner.pages.host_memory import HostMemory
from atom.model_engine.runner.pages.page_copies import Copies, PageCopies
from atom.model_engine.runner.pages.page_sums import DeviceSums
from atom.model_ops.backends.torch_ref import pages as ops
from atom.model_ops.page_table import PageTable
from atom.sizing.host_tier import HostTier
from atom.utils.unnamed_memory import unnamed_memory
from tests.support.waiting import wait_until

BLOCKS, PAGES, STATES = 12, 20, 6


class _Point:
    """A stream or an event: on the CPU everything before it is done."""

    def __init__(self, *_: Any, blocking: bool = False) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Runtime:
    def __init__(self, error: int) -> None:
        self._error = error

    def cudaHostRegister(self, *_: int) -> int:
        return self._error

    def cudaHostUnregister(self, *_: int) -> None:
        assert not self._error, "it was not pinned"


@pytest.fixture(params=[0, 2], ids=["pinned", "not-pinned"], autouse=True)
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", _Point)
    monkeypatch.setattr(torch.cuda, "Event", _Point)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(device_copies, "_runtime", lambda: _Runtime(request.param))


class Side:
    """A cache of two groups and checkpoints, and its rows of the host."""

    def __init__(self, kind: type[Copies], staging: Staging, ranks: int = 1, rank: int = 0) -> None:
        draw = torch.Generator().manual_seed(rank)
        shapes = [[(BLOCKS, 4, 6), (BLOCKS, 4, 6)], [(BLOCKS, 3)], [(STATES, 5, 5), (STATES, 7)]]
        self.tensors = [
            [torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8) for shape in group]
            for group in shapes
        ]
        tables = [PageTable.of(group) for group in self.tensors]
        shape = HostTier(PAGES, 48, STATES, 32, ranks, 0)
        self.memory = HostMemory(unnamed_memory("test"), shape, rank)
        with torch.inference_mode():
            args: Any = (tables, self.memory, ops, lambda: 0.0)
            self.copies = kind(*args, staging) if kind is DeviceCopies else kind(*args)

    def move(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        with torch.inference_mode():
            self.copies.move(number, saves, loads)
        wait_until(lambda: self.memory.finished == number, "the moves are made")

    def content(self) -> list[bytes]:
        found = [tensor.numpy().tobytes() for group in self.tensors for tensor in group]
        return [*found, self.memory.pages.numpy().tobytes(), self.memory.states.numpy().tobytes()]


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    made = Side(PageCopies, Staging(0, 0, 0)), Side(DeviceCopies, Staging(17, 5, 9))
    yield made
    for side in made:
        side.copies.close()


def drawn_moves(draw: random.Random, written: set[int]) -> tuple[list[Move], list[Move]]:
    """Saves and loads of all kinds, to blocks that differ, of rows that were written with as many
    bytes. Loads are of rows that earlier calls have written and that this one does not write, as
    KVTiers reads them."""
    saves, loads = [], []
    rows = draw.sample(range(10), draw.randrange(1, 8))
    saves += [
        Move(0, block, row)
        for row, block in zip(rows, draw.sample(range(BLOCKS), 10), strict=False)
    ]
    rows = draw.sample(range(10, PAGES), draw.randrange(8))
    saves += [
        Move(1, block, row)
        for row, block in zip(rows, draw.sample(range(BLOCKS), 10), strict=False)
    ]
    rows = draw.sample(range(STATES), draw.randrange(5))
    saves += [Move(2, draw.randrange(STATES), PAGES + row) for row in rows]
    written.difference_update(move.row for move in saves)
    for kind, low, high, blocks in (
        (0, 0, 10, BLOCKS),
        (1, 10, PAGES, BLOCKS),
        (2, PAGES, 26, STATES),
    ):
        known = [row for row in written if low <= row < high]
        chosen = draw.sample(known, min(len(known), draw.randrange(5)))
        loads += [
            Move(kind, block, row)
            for row, block in zip(chosen, draw.sample(range(blocks), 6), strict=False)
        ]
    written.update(move.row for move in saves)
    return saves, loads


@pytest.mark.parametrize("seed", range(5))
def test_a_device_has_the_bytes_of_copies_in_the_call(sides: tuple[Side, Side], seed: int) -> None:
    draw, written = random.Random(seed), set[int]()
    at_once, beside = sides
    for number in range(1, 40):
        saves, loads = drawn_moves(draw, written)
        for side in sides:
            side.move(number, saves, loads)
        assert at_once.content() == beside.content()
    assert beside.memory.totals == at_once.memory.totals
    assert all(not side.memory.spoiled_at(row) for side in sides for row in range(26))


@pytest.mark.parametrize("row", [0, 13, PAGES + 2])
def test_a_damaged_row_is_noted_with_the_call_that_read_it(
    sides: tuple[Side, Side], row: int
) -> None:
    kind = 0 if row < 10 else 1 if row < PAGES else 2
    for side in sides:
        side.move(1, [Move(kind, 4, row)], [])
        side.move(2, [], [Move(kind, 5, row)])
        assert side.memory.spoiled_at(row) == 0
        rows = side.memory.pages if row < PAGES else side.memory.states
        rows[row % PAGES, 1] ^= 4
        side.move(3, [], [Move(kind, 3, row)])
        assert side.memory.spoiled_at(row) == 3
        side.move(4, [Move(kind, 4, row)], [])
        side.move(5, [], [Move(kind, 2, row)])
        assert side.memory.spoiled_at(row) == 3, "it was written anew"


def test_copies_that_fail_lose_pages_and_nothing_else(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that keeps the page before is not taken for the one that was to replace it."""
    _, side = sides
    side.move(1, [Move(0, 4, 3)], [])
    rows = side.copies._rows
    with monkeypatch.context() as broken:
        broken.setattr(rows, "runs", lambda moves, pages: 1 / 0)
        side.move(2, [Move(0, 5, 3)], [])
        side.move(3, [], [Move(0, 6, 7)])
    assert side.memory.spoiled_at(7) == 3
    side.move(4, [], [Move(0, 7, 3)])
    assert side.memory.spoiled_at(3) == 4
    side.move(5, [Move(0, 5, 3)], [])
    side.move(6, [], [Move(0, 7, 3)])
    assert side.memory.spoiled_at(3) == 4, "the thread goes on"


def test_the_host_computes_the_checksums_of_a_device(sides: tuple[Side, Side]) -> None:
    """Rows that are filled from files need them; each kind of pages has words of another size."""
    _, side = sides
    side.move(1, [Move(0, 4, 3), Move(1, 2, 12), Move(2, 1, PAGES + 2)], [])
    tables = side.copies._tables
    sums = DeviceSums(
        [table.word_of_rows(48) for table in tables[:2]] + [tables[2].word_of_rows(32)]
    )
    for kind, row in ((0, 3), (1, 12), (2, PAGES + 2)):
        (part,) = side.memory.parts_of_ranks(row)[:, : tables[kind].page_bytes].numpy()
        assert sums.of(kind, part) == side.memory.sums_of_ranks(row)[0]


@pytest.mark.parametrize("width", [8, 4, 1])
def test_the_host_computes_the_checksums_of_long_pages(width: int) -> None:
    tensors = torch.randint(0, 256, (2, 70_000 + width), dtype=torch.uint8)[:, : 70_000 // 8 * 8]
    table = replace(PageTable.of([tensors]), word_bytes=width)
    pages, expected = torch.empty_like(tensors), torch.zeros(2, dtype=torch.int64)
    ops.read_pages(table, torch.arange(2), pages, expected)
    sums = DeviceSums([table.word_of_rows(pages.stride(0))])
    found = [sums.of(0, page) for page in pages.numpy()]
    assert np.array(found, dtype=np.uint64).view(np.int64).tolist() == expected.tolist()


def test_ranks_write_their_parts_of_a_row_beside_each_other() -> None:
    descriptor = unnamed_memory("test")
    shape = HostTier(PAGES, 48, 0, 0, 2, 0)
    first, second = (HostMemory(descriptor, shape, rank) for rank in range(2))
    first.pages[3], second.pages[3] = 1, 2
    assert first.mapped[-PAGES * 96 :].reshape(PAGES, 2, 48)[3].tolist() == [[1] * 48, [2] * 48]
    first.finish(5)
    assert second.finished == 0
    second.finish(4)
    second.spoil(3, 4)
    assert (first.finished, first.spoiled_at(3), second.spoiled_at(2)) == (4, 4, 0)
