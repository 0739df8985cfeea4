"""Large bodies are parsed one a turn of the event loop, and clients take turns."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.http.body_turns import (
    HUGE_BODY_BYTES,
    LARGE_BODY_BYTES,
    TURNS_BETWEEN,
    BodyTurns,
)
from atom.errors import RequestError
from tests.support.waiting import HANG_SECONDS


class Parsing:
    """Bodies that are parsed as they get their turn: parsed holds their clients and the loop's turn
    that each was parsed in."""

    def __init__(self) -> None:
        self.turns = BodyTurns()
        self.parsed: list[tuple[str, int]] = []
        self.turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._count)

    def come(self, client: str, size_bytes: int = LARGE_BODY_BYTES) -> asyncio.Task[None]:
        task = asyncio.create_task(self._parse(client, size_bytes))
        self._tasks.append(task)
        return task

    async def _parse(self, client: str, size_bytes: int) -> None:
        await self.turns.wait(client, size_bytes)
        self.parsed.append((client, self.turn))

    async def end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def clients(self) -> list[str]:
        return [client for client, _ in self.parsed]


async def test_the_loop_has_turns_for_all_else_between_two_large_bodies() -> None:
    parsing = Parsing()
    for number in range(24):
        parsing.come(f"client {number % 3}")
    await parsing.end()
    turns = [turn for _, turn in parsing.parsed]
    assert all(next_ - turn >= TURNS_BETWEEN for turn, next_ in pairwise(turns))


async def test_what_needs_several_turns_of_the_loop_waits_for_one_large_body_at_most() -> None:
    parsing = Parsing()
    for _ in range(24):
        parsing.come("many")
    for _ in range(20):
        before = len(parsing.parsed)
        for _ in range(TURNS_BETWEEN):
            await asyncio.sleep(0)
        assert len(parsing.parsed) - before <= 1
    await parsing.end()


async def test_a_small_body_waits_for_no_large_one() -> None:
    parsing = Parsing()
    for _ in range(24):
        parsing.come("many")
    parsing.come("one", LARGE_BODY_BYTES - 1)
    await parsing.end()
    assert parsing.clients[0] == "one"


@pytest.mark.parametrize("after", range(0, 100, 7))
async def test_a_clients_large_body_waits_for_few_however_many_another_has_sent(
    after: int,
) -> None:
    parsing = Parsing()
    for _ in range(24):
        parsing.come("many")
    for _ in range(after):
        await asyncio.sleep(0)
    before = len(parsing.parsed)
    parsing.come("one")
    await parsing.end()
    # One in the turn in which its task begins, one that has its turn, one behind which it is next.
    assert parsing.clients.index("one") - before <= 3


async def test_all_keys_of_one_address_take_its_turns() -> None:
    parsing = Parsing()
    for number in range(20):
        parsing.come(f"crowd/{number}")
    for _ in range(5):
        parsing.come("alone")
    await parsing.end()
    shares = [client.partition("/")[0] for client in parsing.clients[:10]]
    assert Counter(shares) == {"crowd": 5, "alone": 5}


async def test_who_leaves_takes_no_turn() -> None:
    parsing = Parsing()
    leaving = [parsing.come("many") for _ in range(10)]
    last = parsing.come("many")
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await parsing.end()
    assert parsing.clients == ["many"]
    assert last.done()
    parsing.come("many")
    await parsing.end()
    assert len(parsing.clients) == 2, "turns are handed out again"


async def test_work_on_a_huge_body_runs_on_a_thread_and_goes_on_in_a_turn() -> None:
    turns = BodyTurns()
    threads = {
        size: await turns.of("one").run(size, threading.current_thread)
        for size in (0, LARGE_BODY_BYTES, HUGE_BODY_BYTES - 1, HUGE_BODY_BYTES)
    }
    turns.close()
    main = threading.current_thread()
    assert [thread is main for thread in threads.values()] == [True, True, True, False]


@pytest.mark.parametrize("size_bytes", [0, LARGE_BODY_BYTES, HUGE_BODY_BYTES])
async def test_an_error_of_the_work_is_the_callers(size_bytes: int) -> None:
    turns = BodyTurns()

    def work() -> None:
        raise RequestError("too much", status=413)

    with pytest.raises(RequestError, match="too much"):
        await turns.of("one").run(size_bytes, work)
    turns.close()


async def test_a_client_with_huge_bodies_leaves_a_thread_for_others() -> None:
    turns, go, began = BodyTurns(), threading.Event(), []

    def wait(name: str) -> None:
        began.append(name)
        assert go.wait(HANG_SECONDS)

    many = [
        asyncio.create_task(turns.run("many", HUGE_BODY_BYTES, partial(wait, "many")))
        for _ in range(8)
    ]
    assert await turns.run("one", HUGE_BODY_BYTES, lambda: began.append("one") or 7) == 7
    assert began.count("many") <= 1
    go.set()
    await asyncio.gather(*many)
    turns.close()


async def test_a_huge_body_that_waits_while_the_server_ends_gets_an_error() -> None:
    turns = BodyTurns()
    turns.close()
    with pytest.raises(RequestError, match="shutting down") as caught:
        await turns.run("one", HUGE_BODY_BYTES, lambda: None)
    assert caught.value.status == 503


COMING = st.lists(st.tuples(st.sampled_from("aaab"), st.integers(0, 3)), min_size=1, max_size=40)


@given(COMING)
def test_between_two_turns_of_a_client_that_waits_no_other_has_two(coming) -> None:
    async def run() -> list[str]:
        parsing = Parsing()
        for client, pause in coming:
            parsing.come(client)
            for _ in range(pause):
                await asyncio.sleep(0)
        # All that are left wait already.
        await asyncio.sleep(0)
        first = len(parsing.parsed)
        await parsing.end()
        assert len(parsing.parsed) == len(coming)
        return parsing.clients[first:]

    left = asyncio.run(run())[2:]  # but who has the turn, and who was next when the last one came
    both = min(Counter(left)[client] for client in "ab")
    shared = left[: 2 * both]
    assert all(shared[at] != shared[at + 1] for at in range(len(shared) - 1))
