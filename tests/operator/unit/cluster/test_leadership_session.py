"""A term of reconciling: everything at its start, lost events found, nothing left at its end."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.domain import ObjectKey
from atom_operator.handlers.leadership_session import LeadershipSession
from tests.support.virtual_time import run_virtually

A, B = ObjectKey("default", "a"), ObjectKey("default", "b")


class World:
    """AtomDeployments by key, and the log of reconciles: (seconds, key)."""

    def __init__(self, *keys: ObjectKey) -> None:
        self.keys = list(keys)
        self.reconciles: list[tuple[float, ObjectKey]] = []
        self.list_failures = 0
        self.under_way = 0
        self.again: float | None = None  # what a reconcile asks for

    async def list_keys(self) -> list[ObjectKey]:
        if self.list_failures:
            self.list_failures -= 1
            raise TransientError("the API server starts")
        return list(self.keys)

    async def reconcile(self, key: ObjectKey) -> float | None:
        self.under_way += 1
        try:
            await asyncio.sleep(1)
            self.reconciles.append((asyncio.get_running_loop().time(), key))
        finally:
            self.under_way -= 1
        return self.again

    def term(self) -> LeadershipSession:
        return LeadershipSession(self.reconcile, self.list_keys, workers=2, resync_seconds=300)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_a_term_begins_with_everything_there_is() -> None:
    async def main() -> None:
        world = World(A, B)
        task = asyncio.create_task(world.term().run())
        await asyncio.sleep(10)
        assert sorted(key for _, key in world.reconciles) == [A, B]
        await stop(task)

    run_virtually(main())


def test_what_no_event_announced_is_found_by_the_resync() -> None:
    async def main() -> None:
        world = World(A)
        task = asyncio.create_task(world.term().run())
        await asyncio.sleep(10)
        world.keys.append(B)  # and its event is lost
        await asyncio.sleep(300)
        assert [key for _, key in world.reconciles].count(B) == 1
        await stop(task)

    run_virtually(main())


@pytest.mark.parametrize(("again", "expected"), [(60.0, 100), (None, 20)])
def test_everything_is_looked_at_once_a_period_and_no_oftener_than_it_asks_for(
    again: float | None, expected: int
) -> None:
    async def main() -> None:
        world = World(A, B)
        world.again = again
        task = asyncio.create_task(world.term().run())
        await asyncio.sleep(20 * 300)
        for key in (A, B):
            times = [seconds for seconds, looked_at in world.reconciles if looked_at == key]
            spread = times[1:]  # the first look at everything is one at once
            gaps = [later - earlier for earlier, later in itertools.pairwise(spread)]
            assert max(gaps) <= 300 + 1, "a look takes a second"
            assert len(times) == pytest.approx(expected, abs=0.1 * expected)
        await stop(task)

    run_virtually(main())


def test_a_term_that_cannot_list_yet_tries_again_soon() -> None:
    async def main() -> None:
        world = World(A)
        world.list_failures = 3
        task = asyncio.create_task(world.term().run())
        await asyncio.sleep(10)
        assert [key for _, key in world.reconciles] == [A]
        await stop(task)

    run_virtually(main())


def test_nothing_of_a_term_runs_after_its_end() -> None:
    async def main() -> None:
        world = World(A)
        term = world.term()
        task = asyncio.create_task(term.run())
        await asyncio.sleep(10)
        term.add(B)
        await asyncio.sleep(0.5)
        assert world.under_way == 1
        await stop(task)
        assert world.under_way == 0
        term.add(A)
        await asyncio.sleep(1000)
        assert [key for _, key in world.reconciles] == [A]

    run_virtually(main())


def test_a_bug_in_the_queue_ends_the_term_with_its_error() -> None:
    async def broken() -> list[ObjectKey]:
        raise ZeroDivisionError

    async def main() -> None:
        world = World()
        with pytest.raises(ExceptionGroup) as caught:
            await LeadershipSession(world.reconcile, broken, workers=2, resync_seconds=300).run()
        assert caught.group_contains(ZeroDivisionError)

    run_virtually(main())
