"""Pages are written behind the steps that were submitted before them, by whichever thread: a row
that has ended may have a step under way that writes to the blocks that it has freed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from atom.model_engine.kv_transfer.channel_events import PageCame, PagesWritten, Place
from atom.model_engine.kv_transfer.page_writer import PageWrite, PageWriter
from tests.support.waiting import wait_until

_PLACE = Place("producer", 1)


class Access:
    """Records each write: its blocks, the mark of steps that it is behind, and its thread."""

    device_memory = None

    def __init__(self, *, beside: bool) -> None:
        self.copies_beside_steps = beside
        self.steps = 0
        self.marked_by: set[int] = set()
        self.writes: list[tuple[list[int], object, int]] = []

    def tensors(self) -> list[str]:
        return []

    def page_bytes(self, group: int) -> int:
        return 1

    def read(self, group: int, block_ids: Sequence[int]) -> list[bytes | memoryview]:
        raise AssertionError("a writer reads nothing")

    def submitted_steps(self) -> int:
        self.marked_by.add(threading.get_ident())
        return self.steps

    def write(
        self,
        group: int,
        block_ids: Sequence[int],
        pages: Sequence[bytes | memoryview],
        after: object | None = None,
    ) -> None:
        if 99 in block_ids:
            raise RuntimeError("a block that cannot be written")
        self.writes.append((list(block_ids), after, threading.get_ident()))


def page(number: int) -> PageCame:
    return PageCame(_PLACE, "ab" * 16, number, b"x", True)


@pytest.mark.parametrize("beside", [False, True])
def test_a_write_is_behind_the_steps_submitted_before_it(beside: bool) -> None:
    access, told = Access(beside=beside), list[PagesWritten]()
    writer = PageWriter(access, told.append)
    for step in range(3):
        access.steps = step
        news = writer.write([PageWrite(0, 10 + step, page(step)), PageWrite(1, 20, page(9))])
        told += [] if news is None else [news]
    wait_until(lambda: len(told) == 3, "all pages are written")
    writer.settle()
    writer.close()
    assert access.marked_by == {threading.get_ident()}, "the core's thread marks"
    assert [(blocks, after) for blocks, after, _ in access.writes] == [
        (blocks, step) for step in range(3) for blocks in ([10 + step], [20])
    ]
    own = {thread == threading.get_ident() for _, _, thread in access.writes}
    assert own == {not beside}


@pytest.mark.parametrize("beside", [False, True])
def test_a_group_that_cannot_be_written_is_told_with_the_others(beside: bool) -> None:
    told = list[PagesWritten]()
    writer = PageWriter(Access(beside=beside), told.append)
    news = writer.write([PageWrite(0, 1, page(0)), PageWrite(1, 99, page(1))])
    told += [] if news is None else [news]
    wait_until(lambda: bool(told), "the news arrive")
    writer.close()
    assert told == [PagesWritten([page(0)], [page(1)])]
