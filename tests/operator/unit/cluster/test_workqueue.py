"""One key at a time, nothing lost, failures retried with growing delays (in virtual time)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest

from atom_operator.workqueue import WorkQueue
from tests.support.virtual_time import run_virtually


class ExpectedError(Exception):
    """A failure that needs no traceback."""


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    run_virtually(scenario())


@contextlib.asynccontextmanager
async def working(queue: WorkQueue[str], workers: int = 2) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(queue.work()) for _ in range(workers)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        queue.close()


def test_keys_added_while_waiting_are_processed_once() -> None:
    seen: list[str] = []

    async def handle(key: str) -> None:
        seen.append(key)

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        async with working(queue):
            await asyncio.sleep(1)
        assert sorted(seen) == ["a", "b"]

    run(scenario)


def test_a_key_added_while_processed_runs_again_and_never_twice_at_once() -> None:
    async def scenario() -> None:
        running, most, runs = 0, 0, 0

        async def handle(key: str) -> None:
            nonlocal running, most, runs
            running, runs = running + 1, runs + 1
            most = max(most, running)
            await asyncio.sleep(10)
            running -= 1

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        queue.add("a")
        async with working(queue):
            await asyncio.sleep(5)
            queue.add("a")
            queue.add("a")
            await asyncio.sleep(30)
        assert (runs, most) == (2, 1)

    run(scenario)


def test_failures_are_retried_with_growing_delays_and_forgotten_after_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        times: list[float] = []

        async def handle(key: str) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) != 4:
                raise ExpectedError("busy")

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        queue.add("a")
        async with working(queue):
            await asyncio.sleep(100)
            queue.add("a")
            await asyncio.sleep(0.6)
        delays = [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)]
        assert delays[:3] == [0.5, 1.0, 2.0]
        assert delays[4] == 0.5  # after the success it starts small again

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "busy; again in 0.5s" in caplog.text
    assert "Traceback" not in caplog.text


def test_an_unexpected_failure_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def handle(key: str) -> None:
            raise KeyError("a bug")

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        queue.add("a")
        async with working(queue):
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "Traceback" in caplog.text


def test_a_handler_can_ask_to_be_called_again_later() -> None:
    async def scenario() -> None:
        times: list[float] = []

        async def handle(key: str) -> float | None:
            times.append(asyncio.get_running_loop().time())
            return 30.0 if len(times) == 1 else None

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        queue.add("a")
        async with working(queue):
            await asyncio.sleep(100)
        assert round(times[1] - times[0]) == 30
        assert len(times) == 2

    run(scenario)


def test_what_is_urgent_comes_first_and_in_its_order() -> None:
    async def scenario() -> None:
        seen: list[str] = []

        async def handle(key: str) -> None:
            seen.append(key)

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        for key in ("a", "b", "c", "d"):
            queue.add(key)
        queue.add("z", urgent=True)
        queue.add("c", urgent=True)  # waits already, and is not processed twice for it
        queue.add("z")
        assert len(queue) == 5
        async with working(queue, workers=1):
            await asyncio.sleep(1)
        assert seen == ["z", "c", "a", "b", "d"]
        assert len(queue) == 0

    run(scenario)


def test_what_becomes_urgent_while_it_is_processed_is_the_next_to_be() -> None:
    async def scenario() -> None:
        seen: list[str] = []

        async def handle(key: str) -> None:
            seen.append(key)
            await asyncio.sleep(1)
            if len(seen) == 1:
                queue.add("a", urgent=True)

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        for key in ("a", "b", "c"):
            queue.add(key)
        async with working(queue, workers=1):
            await asyncio.sleep(10)
        assert seen == ["a", "a", "b", "c"]

    run(scenario)


def test_a_burst_of_events_is_one_look_and_what_is_urgent_does_not_rest() -> None:
    async def scenario() -> None:
        times: list[float] = []

        async def handle(key: str) -> None:
            times.append(round(asyncio.get_running_loop().time() - started, 1))

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        started = asyncio.get_running_loop().time()
        async with working(queue):
            for _ in range(8):
                queue.add("a")
                await asyncio.sleep(0.1)
            queue.add("a", urgent=True)
            await asyncio.sleep(0.1)
            queue.add("a")
            await asyncio.sleep(100)
        assert times == [0.0, 0.8, 1.8]

    run(scenario)


def test_a_newer_look_says_when_the_next_one_is() -> None:
    async def scenario() -> None:
        times: list[float] = []

        async def handle(key: str) -> float | None:
            times.append(asyncio.get_running_loop().time())
            return 30.0 if len(times) == 1 else None

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        queue.add("a")
        async with working(queue):
            await asyncio.sleep(10)
            queue.add("a")
            await asyncio.sleep(100)
        assert len(times) == 2

    run(scenario)


def test_what_is_urgent_finds_a_worker_and_shares_with_one_other() -> None:
    async def scenario() -> None:
        begun: list[str] = []

        async def handle(key: str) -> None:
            begun.append(key)
            await asyncio.sleep(30 if key == "urgent" else 10)

        queue: WorkQueue[str] = WorkQueue(handle, expected=ExpectedError)
        for number in range(9):
            queue.add(f"calm {number}")
        async with working(queue, workers=4):
            await asyncio.sleep(1)
            assert begun == ["calm 0", "calm 1", "calm 2"]
            queue.add("urgent", urgent=True)
            await asyncio.sleep(1)
            assert begun[3:] == ["urgent"]
            await asyncio.sleep(10)
            assert begun[4:] == ["calm 3"]
            await asyncio.sleep(100)
        assert len(begun) == 10

    run(scenario)
