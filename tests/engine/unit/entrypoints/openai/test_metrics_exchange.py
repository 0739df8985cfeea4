from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atom.entrypoints.metrics_exchange import MetricsExchange, ServerNumbers
from atom.errors import RequestError
from atom.metrics import RequestMetrics
from atom.model_engine.wire.engine_protocol import RankStats
from tests.support.engine_core.front_half import rank_stats


def numbers(*by_rank: RankStats, answers: int, seconds: float) -> ServerNumbers:
    requests = RequestMetrics()
    for _ in range(answers):
        requests.record_end("stop", 10, 4)
        requests.end_to_end.observe(seconds)
    return ServerNumbers(requests, {one.rank: one for one in by_rank})


async def test_the_total_is_the_same_whoever_is_asked(socket_folder: Path) -> None:
    parts = {
        # Aborts take no step, so the newest word of a rank is not the one with most steps.
        socket_folder / "a": numbers(rank_stats(0, 7, steps_total=9), answers=2, seconds=0.2),
        socket_folder / "b": numbers(
            rank_stats(0, 6, steps_total=9, requests_running=1),
            rank_stats(1, 3, steps_total=4),
            answers=3,
            seconds=7.0,
        ),
    }
    exchanges = [
        MetricsExchange(own, [other for other in parts if other != own], lambda own=own: parts[own])
        for own in parts
    ]
    for exchange in exchanges:
        await exchange.start()
    totals = [await exchange.total() for exchange in exchanges]
    for total in totals:
        assert total.requests.finished == {"stop": 5}
        assert total.requests.end_to_end.total == pytest.approx(21.4)
        assert sum(total.requests.prompt_tokens.counts) == 5
        newest = {rank: one.stats for rank, one in total.stats_by_rank.items()}
        assert {rank: one.steps_total for rank, one in newest.items()} == {0: 9, 1: 4}
        assert newest[0].requests_running == 0
    assert parts[socket_folder / "a"].requests.finished == {"stop": 2}, "the parts stay as they are"
    for exchange in exchanges:
        exchange.stop()


async def test_what_a_process_counted_until_it_ended_still_counts(socket_folder: Path) -> None:
    mine, theirs = numbers(answers=1, seconds=1.0), numbers(answers=2, seconds=1.0)
    exchange = MetricsExchange(socket_folder / "a", [socket_folder / "b"], lambda: mine)
    other = MetricsExchange(socket_folder / "b", [], lambda: theirs)
    with pytest.raises(RequestError, match="did not tell its numbers") as refused:
        await exchange.total()
    assert refused.value.status == 503
    await other.start()
    assert (await exchange.total()).requests.finished == {"stop": 3}
    theirs.requests.record_end("stop", 10, 4)  # after it was asked last
    other.stop()
    assert (await exchange.total()).requests.finished == {"stop": 4}


async def test_an_answer_that_is_not_numbers_is_no_sum(socket_folder: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x93nonsense")
        writer.close()

    server = await asyncio.start_unix_server(babble, socket_folder / "b")
    exchange = MetricsExchange(
        socket_folder / "a", [socket_folder / "b"], lambda: numbers(answers=1, seconds=1)
    )
    with pytest.raises(RequestError, match="did not tell its numbers"):
        await exchange.total()
    server.close()
