"""Every way to bring tokens to their experts and back gives each token the sum of its experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from atom.collectives.expert_links import ExpertLinks
from atom.errors import ConfigError
from atom.model_ops.expert_parallel.dispatch import (
    AllGatherDispatch,
    AllToAllDispatch,
    ExpertDispatch,
)
from atom.model_ops.expert_parallel.mori_dispatch import MoriDispatch, MoriShape, open_mori
from atom.model_ops.routing import Routed
from tests.support.fake_mori import GENERATIONS, ContractError, fake_mori
from tests.support.ranks.thread_links import ThreadLinks, ThreadWorld

HIDDEN, TOP_K, SLOTS, MOST = 8, 3, 4, 6
SHAPE = MoriShape(MOST, HIDDEN, TOP_K, SLOTS, torch.float32, ranks_per_node=1)


def _mori(generation: str, nodes: int = 1) -> Callable[[ThreadLinks], MoriDispatch]:
    def build(links: ThreadLinks) -> MoriDispatch:
        library = fake_mori(generation, links)
        shape = replace(SHAPE, ranks_per_node=links.size // nodes)
        return MoriDispatch(library.ops, library.shmem, links, shape)

    return build


WAYS: dict[str, Callable[[ThreadLinks], ExpertDispatch]] = {
    "gathered": lambda links: AllGatherDispatch(links, MOST),
    "all to all": AllToAllDispatch,
    **{f"mori {generation}": _mori(generation) for generation in GENERATIONS},
    **{f"mori {generation}, two nodes": _mori(generation, 2) for generation in GENERATIONS},
}


def _tokens(rank: int, ranks: int, count: int) -> tuple[torch.Tensor, Routed]:
    draw = torch.Generator().manual_seed(100 * ranks + rank)
    x = torch.randn(count, HIDDEN, generator=draw)
    chosen = [torch.randperm(ranks * SLOTS, generator=draw)[:TOP_K] for _ in range(count)]
    ids = torch.stack(chosen) if chosen else torch.empty(0, TOP_K)
    return x, Routed(ids.int(), torch.rand(count, TOP_K, generator=draw))


def _experts(x: torch.Tensor, routed: Routed, first: int) -> torch.Tensor:
    """Expert number e of all gives (e + 1) · x; those of other ranks nothing, whatever is in x."""
    is_own = (routed.ids >= 0) & (routed.ids < (SLOTS if routed.is_partial else 1 << 20))
    weight = ((routed.ids + first + 1) * routed.weights).where(is_own, 0.0)
    total = weight.sum(dim=1, keepdim=True)
    return torch.where(total != 0, x * total, 0.0)


@pytest.mark.parametrize("counts", [(4, 6), (0, 5), (1, 0), (3, 1, 0, 6)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_token_gets_the_sum_of_its_experts(way: str, counts: tuple[int, ...]) -> None:
    ranks = len(counts)

    def one(links: ThreadLinks) -> torch.Tensor:
        exchange = WAYS[way](links)
        x, routed = _tokens(links.rank, ranks, counts[links.rank])
        for _ in range(2):  # a layer after the other, over the same buffers
            arrived = exchange.dispatch(x, routed, SLOTS)
            result = _experts(arrived.x, arrived.routed, links.rank * SLOTS)
            combined = exchange.combine(arrived, result).clone()
        return combined

    for rank, combined in enumerate(ThreadWorld(ranks).run(one)):
        x, routed = _tokens(rank, ranks, counts[rank])
        torch.testing.assert_close(combined, _experts(x, routed, 0))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "all to all"])
def test_padding_that_chooses_no_expert_adds_nothing(way: str) -> None:
    def one(links: ThreadLinks) -> torch.Tensor:
        exchange = WAYS[way](links)
        x, routed = _tokens(links.rank, 2, 4)
        routed.ids[2:] = -1
        arrived = exchange.dispatch(x, routed, SLOTS)
        result = _experts(arrived.x, arrived.routed, links.rank * SLOTS)
        return exchange.combine(arrived, result)

    for rank, combined in enumerate(ThreadWorld(2).run(one)):
        x, routed = _tokens(rank, 2, 4)
        torch.testing.assert_close(combined[:2], _experts(x, routed, 0)[:2])
        assert not combined[2:].any()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_mori_gives_its_memory_back(generation: str) -> None:
    def one(links: ThreadLinks) -> int:
        library = fake_mori(generation, links)
        MoriDispatch(library.ops, library.shmem, links, SHAPE).close()
        finalized: int = library.finalized
        return finalized

    assert ThreadWorld(1).run(one) == [1]


def test_the_double_refuses_what_once_lost_tokens() -> None:
    """Blocks and warps by position: the warps would be taken for blocks of RDMA."""

    def one(links: ThreadLinks) -> None:
        library = fake_mori(GENERATIONS[-1], links)
        exchange = MoriDispatch(library.ops, library.shmem, links, SHAPE)
        x, routed = _tokens(0, 1, 2)
        exchange._op.dispatch(x, routed.weights, None, routed.ids, 80, 8)

    with pytest.raises(ContractError, match="by keyword"):
        ThreadWorld(1).run(one)


def test_an_engine_without_mori_says_so() -> None:
    links: ExpertLinks = ThreadLinks(ThreadWorld(1), 0)
    with pytest.raises(ConfigError, match="install AMD's mori, or use --expert-exchange torch"):
        open_mori(links, SHAPE)
    half = replace(SHAPE, dtype=torch.float16)
    with pytest.raises(ConfigError, match="bfloat16 and float32, and not float16"):
        open_mori(links, half)
