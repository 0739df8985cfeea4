"""Silent engines cost a moment each, ever more rarely; those that answer are asked as before."""

from __future__ import annotations

import asyncio

from atom_operator.cluster.engine_backoff import EnginesWithBackoff
from atom_operator.domain import AdapterState, Capacity, EngineHealth, EngineMetrics
from tests.support.virtual_time import run_virtually

_OK = EngineHealth("ok", "")


class SlowEngines:
    """Answers after `seconds`, or gives up after three like the real client."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[float] = []

    async def health(self, address: str) -> EngineHealth | None:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(min(self.seconds, 3.0))
        return _OK if self.seconds < 3.0 else None

    async def capacity(self, address: str) -> Capacity | None:
        raise AssertionError("nobody asks for it here")

    async def metrics(self, address: str) -> EngineMetrics | None:
        raise AssertionError("they are not asked for here")

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        raise AssertionError("they are not asked for here")


def patient(engines: SlowEngines) -> EnginesWithBackoff:
    return EnginesWithBackoff(engines, asyncio.get_running_loop().time)


def test_an_engine_that_answers_is_asked_every_time() -> None:
    async def main() -> None:
        engines = SlowEngines(0.01)
        line = patient(engines)
        assert [await line.health("a") for _ in range(3)] == [_OK] * 3
        assert len(engines.asked) == 3

    run_virtually(main())


def test_a_silent_engine_holds_a_reconcile_up_for_a_moment_only() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        line = patient(SlowEngines(10))
        assert await line.health("a") is None
        assert loop.time() < 0.5
        assert await line.health("a") is None
        assert loop.time() < 0.5
        await asyncio.sleep(5)

    run_virtually(main())


def test_a_late_answer_is_there_for_the_next_look() -> None:
    async def main() -> None:
        engines = SlowEngines(2)
        line = patient(engines)
        assert await line.health("a") is None
        await asyncio.sleep(10)
        assert await line.health("a") == _OK
        assert len(engines.asked) == 1

    run_virtually(main())


def test_an_answer_from_long_ago_is_no_news() -> None:
    async def main() -> None:
        engines = SlowEngines(2)
        line = patient(engines)
        assert await line.health("a") is None
        await asyncio.sleep(600)
        assert await line.health("a") is None
        assert len(engines.asked) == 2
        await asyncio.sleep(5)

    run_virtually(main())


def test_the_pauses_grow_up_to_five_minutes() -> None:
    async def main() -> None:
        engines = SlowEngines(10)
        line = patient(engines)
        for _ in range(3600):  # an hour of reconciles, one a second
            await line.health("a")
            await asyncio.sleep(1)
        pauses = [round(b - a) for a, b in zip(engines.asked, engines.asked[1:], strict=False)]
        assert pauses == sorted(pauses)
        assert pauses[0] <= 7
        assert 300 <= pauses[-1] <= 303
        assert len(engines.asked) < 20

    run_virtually(main())


def test_one_silent_engine_does_not_hush_the_others() -> None:
    async def main() -> None:
        engines = SlowEngines(10)
        line = patient(engines)
        assert await line.health("a") is None
        engines.seconds = 0.01
        assert await line.health("b") == _OK
        await asyncio.sleep(5)

    run_virtually(main())
