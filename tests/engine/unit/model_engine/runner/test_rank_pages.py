"""Pages that ranks exchange through shared memory: reads find what was written, however far the
other ranks are behind the leader."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_engine.control import CopyPages, RankControl
from atom.model_engine.executor.tensor_parallel.rank_pages import RankPages
from atom.model_engine.runner.pages import shared_pages
from atom.model_engine.runner.pages.canonical_pages import CanonicalPage, Heads, Part, Share
from atom.model_engine.runner.pages.shared_pages import SharedPages
from atom.model_engine.runner.pages.transferred_pages import TransferredPages
from atom.utils.unnamed_memory import unnamed_memory

_BLOCKS = 6
_MOVES = 40


def drawn_groups(dice: random.Random) -> list[list[tuple[int, int]]]:
    """Heads and bytes of a head of some tensors, by group; no heads: the same on every rank."""
    return [
        [
            (dice.choice((0, 1, 2, 4, 8)), dice.choice((1, 4, 12)))
            for _ in range(dice.randrange(1, 4))
        ]
        for _ in range(dice.randrange(1, 4))
    ]


def page_of(tensors: list[tuple[int, int]], share: Share) -> CanonicalPage:
    """The layout of a rank's pages."""
    parts: list[Part] = []
    offset = own_offset = 0
    for count, width in tensors:
        heads = Heads.of(count, share) if count else Heads.whole(share)
        parts.append(Part(heads, 1, width, offset, own_offset))
        offset += heads.count * width
        own_offset += heads.own * width
    return CanonicalPage(tuple(parts))


class Rank:
    """A rank's blocks of each group, instead of a device's."""

    def __init__(self, groups: list[list[tuple[int, int]]], share: Share) -> None:
        self._pages = [page_of(each, share) for each in groups]
        self._blocks = [
            torch.zeros(_BLOCKS, page.own_bytes, dtype=torch.uint8) for page in self._pages
        ]
        largest = max(page.page_bytes for page in self._pages)
        assert share.descriptor is not None
        self.shared = SharedPages(share.descriptor, share.rank, share.ranks, largest)

    def page_bytes(self, group: int) -> int:
        return self._pages[group].page_bytes

    def copy(self, call: CopyPages) -> None:
        page, blocks = self._pages[call.group], self._blocks[call.group]
        rows = self.shared.rows(len(call.block_ids), page.page_bytes)
        if call.is_read:
            page.gather(blocks[call.block_ids], rows)
        else:
            own = torch.empty(len(call.block_ids), page.own_bytes, dtype=torch.uint8)
            page.scatter(rows, own)
            blocks[call.block_ids] = own
        self.shared.finish(call.number)


class Ranks:
    """The leader carries a call out at once, and the others do one more whenever it waits."""

    def __init__(self, groups: list[list[tuple[int, int]]], count: int) -> None:
        memory = unnamed_memory("atom-kv-transfers")
        self.leader, *self._others = (
            Rank(groups, Share(rank, count, memory)) for rank in range(count)
        )
        self._behind: list[deque[CopyPages]] = [deque() for _ in self._others]

    def control(self, call: RankControl[Any]) -> None:
        assert isinstance(call, CopyPages)
        for calls in self._behind:
            calls.append(call)
        self.leader.copy(call)

    def sleep(self, _seconds: float) -> None:
        for rank, calls in zip(self._others, self._behind, strict=True):
            if calls:
                rank.copy(calls.popleft())


@pytest.mark.parametrize("seed", range(20))
def test_reads_find_what_was_written(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    groups = drawn_groups(dice)
    ranks = Ranks(groups, dice.choice((2, 4)))
    monkeypatch.setattr(shared_pages, "time", SimpleNamespace(sleep=ranks.sleep))
    pages = RankPages(cast(TransferredPages, ranks.leader), ranks.control)
    kept: dict[tuple[int, int], bytes] = {}
    for _ in range(_MOVES):
        group = dice.randrange(len(groups))
        blocks = dice.sample(range(_BLOCKS), dice.randrange(1, _BLOCKS))
        if dice.random() < 0.5:
            drawn = [dice.randbytes(pages.page_bytes(group)) for _ in blocks]
            pages.write(group, blocks, drawn)
            kept |= {(group, block): page for block, page in zip(blocks, drawn, strict=True)}
            continue
        found = pages.read(group, blocks)
        for block, page in zip(blocks, found, strict=True):
            expected = kept.get((group, block), bytes(pages.page_bytes(group)))
            assert bytes(page) == expected, (group, block)
