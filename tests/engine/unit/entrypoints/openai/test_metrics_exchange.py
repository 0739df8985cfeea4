from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atom.entrypoints.openai.metrics_exchange import MetricsExchange, ServerNumbers
from atom.errors import RequestError
from atom.metrics import RequestMetrics
from atom.model_engine.wire.engine_protocol import StatsBody


def stats(**counts: int) -> StatsBody:
    return StatsBody(**{name: counts.get(name, 0) for name in StatsBody.__struct_fields__})


def numbers(*, answers: int, seconds: float, **by_rank: StatsBody) -> ServerNumbers:
    requests = RequestMetrics()
    for _ in range(answers):
        requests.record_end("stop", 10, 4)
        requests.end_to_end.observe(seconds)
    return ServerNumbers(requests, {int(name[4:]): value for name, value in by_rank.items()})


async def test_the_total_is_the_same_whoever_is_asked(tmp_path: Path) -> None:
    parts = {
        tmp_path / "a": numbers(answers=2, seconds=0.2, rank0=stats(steps_total=9)),
        tmp_path / "b": numbers(
            answers=3, seconds=7.0, rank0=stats(steps_total=8), rank1=stats(steps_total=4)
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
        assert {rank: one.steps_total for rank, one in total.stats_by_rank.items()} == {0: 9, 1: 4}
    assert parts[tmp_path / "a"].requests.finished == {"stop": 2}, "the parts stay as they are"
    for exchange in exchanges:
        exchange.stop()


async def test_what_a_process_said_before_it_ended_still_counts(tmp_path: Path) -> None:
    mine, theirs = numbers(answers=1, seconds=1.0), numbers(answers=2, seconds=1.0)
    exchange = MetricsExchange(tmp_path / "a", [tmp_path / "b"], lambda: mine)
    other = MetricsExchange(tmp_path / "b", [], lambda: theirs)
    with pytest.raises(RequestError, match="did not tell its numbers") as refused:
        await exchange.total()
    assert refused.value.status == 503
    await other.start()
    assert (await exchange.total()).requests.finished == {"stop": 3}
    other.stop()
    assert (await exchange.total()).requests.finished == {"stop": 3}


async def test_an_answer_that_is_not_numbers_is_no_sum(tmp_path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x93nonsense")
        writer.close()

    server = await asyncio.start_unix_server(babble, tmp_path / "b")
    exchange = MetricsExchange(
        tmp_path / "a", [tmp_path / "b"], lambda: numbers(answers=1, seconds=1)
    )
    with pytest.raises(RequestError, match="did not tell its numbers"):
        await exchange.total()
    server.close()
