from __future__ import annotations

import pytest

from atom.config import RoutingPolicy
from atom.model_engine.wire.request_router import RequestRouter
from tests.support.engine_core.builders_engine import make_request


def test_the_rank_with_the_fewest_open_tokens_is_next() -> None:
    router = RequestRouter(3, "least_tokens")
    placed = [
        router.place(make_request(number, prompt, max_tokens=10))
        for number, prompt in enumerate([100, 50, 20, 20, 20])
    ]
    # 110, 60, 30 → the third until it passes the second's 60, then the second
    assert placed == [0, 1, 2, 2, 1]
    assert router._outstanding_tokens == [110, 90, 60]


def test_ended_requests_weigh_nothing() -> None:
    router = RequestRouter(2, "least_tokens")
    for number in range(4):
        router.place(make_request(number, 10))
    assert router.by_rank([0, 1, 2, 3, 99]) == {0: [0, 2], 1: [1, 3]}
    for number in (0, 2, 2, 99):
        router.release(number)
    assert router._outstanding_tokens[0] == 0
    assert router.by_rank(range(6)) == {1: [1, 3]}
    assert [router.place(make_request(number, 10)) for number in (4, 5)] == [0, 0]
    assert router.by_rank([0]) == {}


def test_equal_ranks_take_turns_from_the_first_rank_on() -> None:
    router = RequestRouter(3, "least_tokens", first_rank=4)
    assert [router.place(make_request(number, 5)) for number in range(6)] == [1, 2, 0, 1, 2, 0]


def test_an_answer_without_a_limit_does_not_outweigh_every_other() -> None:
    router = RequestRouter(2, "least_tokens")
    router.place(make_request(0, 10, max_tokens=100_000))
    ranks = [router.place(make_request(number, 10, max_tokens=90)) for number in range(1, 11)]
    assert set(ranks) == {0, 1}


def test_round_robin_takes_turns_whatever_the_load() -> None:
    router = RequestRouter(2, "round_robin")
    lengths = [500, 1, 500, 1]
    assert [router.place(make_request(i, n)) for i, n in enumerate(lengths)] == [0, 1, 0, 1]


@pytest.mark.parametrize("policy", ["least_tokens", "round_robin"])
def test_a_lost_rank_gets_nothing_more_and_gives_back_what_it_served(policy: RoutingPolicy) -> None:
    router = RequestRouter(3, policy)
    placed = {number: router.place(make_request(number, 10)) for number in range(1, 10)}
    served = [number for number, rank in placed.items() if rank == 1]
    assert router.lose(1) == served
    assert router.by_rank(served) == {}
    assert router._outstanding_tokens[1] == 0
    assert {router.place(make_request(number, 10)) for number in range(10, 20)} == {0, 2}
    router.lose(0)
    assert {router.place(make_request(number, 10)) for number in range(20, 24)} == {2}
