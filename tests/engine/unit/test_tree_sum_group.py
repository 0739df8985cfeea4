"""Sums of four ranks are one tree's, whatever order their messages come in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, cast

import pytest
import torch

from atom.collectives.group import Group
from atom.model_ops.tree_sums import TreeSumGroup, sum_by_halves, tree_sum
from atom.model_ops.values import NormWeight, Pending, Stream
from tests.support.waiting import HANG_SECONDS

RANKS = 4
EPS = 1e-6


class ThreadRank:
    """One of the ranks, each a thread here: a group without sums of its own."""

    size, nodes = RANKS, 1

    def __init__(self, board: list[torch.Tensor], turns: Barrier, rank: int) -> None:
        self.rank = rank
        self._board = board
        self._turns = turns

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self._board[self.rank] = x
        self._turns.wait(HANG_SECONDS)
        everyone = torch.cat(self._board, dim=-1)
        self._turns.wait(HANG_SECONDS)  # before the board is written again
        return everyone

    def enter(self) -> None: ...

    def barrier(self) -> None: ...

    def close(self) -> None: ...


def norm(stream: Stream, weight: NormWeight) -> tuple[torch.Tensor, Stream]:
    total = stream.residual + cast(torch.Tensor, stream.pending)
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + weight.eps)
    return total * scale * weight.weight, Stream(total)


def test_four_ranks_have_the_same_bits_as_one_tree() -> None:
    draw = torch.Generator().manual_seed(7)
    shares = torch.randn(RANKS, 3, 32, generator=draw) * torch.logspace(-4, 4, RANKS)[:, None, None]
    residual, weight = torch.randn(3, 32, generator=draw), torch.rand(32, generator=draw)

    board, turns = [torch.empty(0)] * RANKS, Barrier(RANKS)

    def rank(number: int) -> tuple[torch.Tensor, ...]:
        group = TreeSumGroup(cast(Group, ThreadRank(board, turns, number)), norm)
        assert (group.rank, group.size) == (number, RANKS)
        parts = torch.stack((shares[number] / 2, shares[number] / 2))
        return (
            group.reduce(shares[number].clone()),
            *group.add_and_norm(shares[number].clone(), residual, weight, EPS),
            *group.add_and_norm(parts, residual, weight, EPS),
        )

    with ThreadPoolExecutor(RANKS) as threads:
        told: list[Any] = list(threads.map(rank, range(RANKS)))
    total = (shares[0] + shares[1]) + (shares[2] + shares[3])
    assert torch.equal(tree_sum(shares.unbind()), total)
    chain = shares[0] + shares[1] + shares[2] + shares[3]
    assert not torch.equal(total, chain), "these shares tell one order from another"
    normed, stream = norm(Stream(residual, total, Pending.WHOLE), NormWeight(weight, EPS))
    wanted = (total, normed, stream.residual, normed, stream.residual)
    for found in told:
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("width", [1, 2, 7, 96])
def test_a_row_is_summed_by_halves_whatever_rows_there_are(width: int) -> None:
    rows = torch.randn(33, width, generator=torch.Generator().manual_seed(3))
    found = sum_by_halves(rows)
    torch.testing.assert_close(found, rows.double().sum(-1).float())
    for row, total in zip(rows, found, strict=True):
        assert torch.equal(sum_by_halves(row), total)
