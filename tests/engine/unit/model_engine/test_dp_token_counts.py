"""Ranks with schedulers of their own agree on every step, whatever comes when, without a hang.

Words travel by queues here, each rank a thread's worth of turns that a random order interleaves;
with sockets and processes: test_expert_parallel.py.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from atom.model_engine.executor.expert_parallel.dp_token_counts import (
    DPMetadata,
    DPTokenCounts,
    DPTokenCountsError,
)
from atom.model_engine.wire.peer_mesh import TokenCount

BUCKETS = (1, 2, 4, 8, 16)


@dataclass
class _Rank:
    """One rank's loop, a move at a time: it works on steps of its own list, joins those of others,
    and takes as many moves as it is given."""

    number: int
    token_counts: DPTokenCounts
    work: deque[int]  # tokens of each step to come; 0: a turn without any
    inbox: deque[tuple[int, TokenCount]] = field(default_factory=deque)
    steps: list[tuple[DPMetadata, int]] = field(default_factory=list)
    waits: int | None = None  # tokens that it has said, while others are missing

    def move(self, peers: list[_Rank]) -> None:
        while self.inbox:
            self.token_counts.receive(*self.inbox.popleft())
        if self.waits is None and (tokens := self._next()) is not None:
            self.waits = tokens
            count = self.token_counts.contribute(tokens)
            for peer in peers:
                peer.inbox.append((self.number, count))
        if self.waits is not None and not self.token_counts.missing:
            self.steps.append((self.token_counts.complete(), self.waits))
            self.waits = None

    def _next(self) -> int | None:
        if self.work and self.work.popleft():
            return random.Random(len(self.work)).randint(1, 20)
        return 0 if self.token_counts.is_called else None


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_agree_on_every_step_of_random_work(ranks: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        group = [
            _Rank(
                number,
                DPTokenCounts(number, ranks, BUCKETS),
                deque(draw.choices((0, 1), k=draw.randint(0, 30))),
            )
            for number in range(ranks)
        ]
        for _ in range(400 * ranks):
            one = draw.choice(group)
            one.move([peer for peer in group if peer is not one])
        assert not any(rank.work or rank.inbox or rank.waits is not None for rank in group)
        for steps in zip(*(rank.steps for rank in group), strict=True):
            (agreement,) = {agreed for agreed, _ in steps}
            most = max(tokens for _, tokens in steps)
            assert most > 0, "no step without tokens"
            assert agreement.capacity == next((b for b in BUCKETS if b >= most), None)


def test_ranks_without_work_say_nothing() -> None:
    idle, other = DPTokenCounts(0, 2, BUCKETS), DPTokenCounts(1, 2, BUCKETS)
    assert not idle.is_called
    idle.receive(1, other.contribute(3))
    assert idle.is_called
    other.receive(0, idle.contribute(0))
    assert idle.complete() == other.complete() == DPMetadata(0, 4)
    assert not idle.is_called
    assert idle.missing == {1}


def test_a_faster_rank_may_be_one_step_ahead() -> None:
    slow = DPTokenCounts(0, 2, BUCKETS)
    slow.contribute(1)
    slow.receive(1, TokenCount(0, 2))
    slow.receive(1, TokenCount(1, 9))
    assert slow.complete().capacity == 2
    assert slow.is_called
    slow.contribute(0)
    assert slow.complete().capacity == 16


@pytest.mark.parametrize("count", [TokenCount(2, 1), TokenCount(0, 1)], ids=["too far", "twice"])
def test_a_count_out_of_place_is_a_fault(count: TokenCount) -> None:
    rank = DPTokenCounts(0, 2, BUCKETS)
    rank.receive(1, TokenCount(0, 1))
    with pytest.raises(DPTokenCountsError, match="rank 1 sent a token count for step"):
        rank.receive(1, count)
