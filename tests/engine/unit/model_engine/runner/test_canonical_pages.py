"""Pages of all KV heads: any number of ranks writes the page that one rank writes, and any other
number reads its own heads from it."""

from __future__ import annotations

import random

import pytest
import torch

from atom.model_engine.runner.pages.canonical_pages import CanonicalPage, Heads, Part, Share

_RANKS = (1, 2, 4, 8)


def drawn_tensors(dice: random.Random) -> list[tuple[int, int, int]]:
    """Tokens, heads and bytes of a head of some tensors; no heads: the same on every rank."""
    return [
        (dice.choice((1, 4, 16)), dice.choice((0, 1, 2, 4, 8, 16)), dice.choice((1, 2, 12)))
        for _ in range(dice.randrange(1, 5))
    ]


def page_of(tensors: list[tuple[int, int, int]], share: Share) -> tuple[CanonicalPage, int]:
    """The page of a rank, and the bytes of its own page."""
    parts: list[Part] = []
    offset = own_offset = 0
    for tokens, count, width in tensors:
        heads = Heads.of(count, share) if count else Heads.whole(share)
        parts.append(Part(heads, tokens, width, offset, own_offset))
        offset += tokens * heads.count * width
        own_offset += tokens * heads.own * width
    return CanonicalPage(tuple(parts)), own_offset


def own_pages(
    tensors: list[tuple[int, int, int]], content: list[torch.Tensor], share: Share
) -> torch.Tensor:
    """A rank's own pages, by the rule by which layers divide heads."""
    parts = []
    for (_, count, _), values in zip(tensors, content, strict=True):
        own = max(1, count // share.ranks)
        first = share.rank * count // share.ranks if count else 0
        parts.append(values[:, :, first : first + own].flatten(1))
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("seed", range(20))
def test_any_numbers_of_ranks_exchange_the_same_pages(seed: int) -> None:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    tensors, pages = drawn_tensors(dice), dice.randrange(1, 4)
    content = [
        torch.randint(0, 255, (pages, tokens, max(1, count), width), dtype=torch.uint8)
        for tokens, count, width in tensors
    ]
    expected = own_pages(tensors, content, Share())
    for writers in _RANKS:
        whole = torch.zeros_like(expected)
        for rank in range(writers):
            share = Share(rank, writers)
            page, own_bytes = page_of(tensors, share)
            assert page.page_bytes == expected.shape[1]
            own = own_pages(tensors, content, share)
            assert own.shape[1] == own_bytes
            page.gather(own, whole)
            read = torch.zeros_like(own)
            page.scatter(expected, read)
            assert torch.equal(read, own), (rank, writers)
        assert torch.equal(whole, expected), writers


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("ranks", _RANKS)
def test_each_head_is_written_once(count: int, ranks: int) -> None:
    slices = [Heads.of(count, Share(rank, ranks)) for rank in range(ranks)]
    written = [
        head
        for each in slices
        if each.is_first
        for head in range(each.first, each.first + each.own)
    ]
    assert sorted(written) == list(range(count))
