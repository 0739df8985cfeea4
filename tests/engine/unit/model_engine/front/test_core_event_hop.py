"""Events of the core reach the event loop in order, a moment's work at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import pytest

from atom.model_engine.front.core_event_hop import MOST_SECONDS, CoreEventHop
from tests.support.waiting import eventually


class Handled:
    """Events that each take a time to handle. hops: the events of each hop."""

    def __init__(self, seconds_an_event: float) -> None:
        self._seconds = seconds_an_event
        self.now = 0.0
        self.hops: list[list[int]] = []
        self.hop = CoreEventHop(self._handle, lambda: self.now)
        self.hop.start()

    def _handle(self, events: Iterable[Any]) -> None:
        self.hops.append([])
        for event in events:
            self.hops[-1].append(event)
            self.now += self._seconds

    def put(self, *events: int) -> None:
        for event in events:
            self.hop.put(cast(Any, event))

    @property
    def all(self) -> list[int]:
        return [event for hop in self.hops for event in hop]


async def test_what_has_accumulated_is_handled_in_one_hop_if_it_is_quick() -> None:
    handled = Handled(MOST_SECONDS / 1000)
    handled.put(*range(100))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert handled.hops == [list(range(100))]


@pytest.mark.parametrize("an_event", [0.3, 0.5, 1.0, 7.0])
async def test_the_loop_has_its_turn_between_two_moments_of_work(an_event: float) -> None:
    handled = Handled(MOST_SECONDS * an_event)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(handled.all))
        if len(handled.all) < 40:
            asyncio.get_running_loop().call_soon(look)

    handled.put(*range(40))
    look()
    await eventually(lambda: len(handled.all) == 40, "all are handled")
    assert handled.all == list(range(40))
    most = 1 + int(1 / an_event)
    assert max(map(len, handled.hops)) <= most
    assert all(later - earlier <= most for earlier, later in pairwise(seen))


async def test_no_event_is_lost_or_overtaken_whenever_threads_put_it() -> None:
    handled = Handled(MOST_SECONDS * 0.7)
    threads = [
        threading.Thread(target=lambda first=first: handled.put(*range(first, first + 500)))
        for first in (0, 1000, 2000)
    ]
    for thread in threads:
        thread.start()
    await eventually(lambda: len(handled.all) == 1500, "all are handled")
    for first in (0, 1000, 2000):
        assert [each for each in handled.all if first <= each < first + 500] == list(
            range(first, first + 500)
        )


async def test_an_event_behind_a_closed_loop_is_passed_over() -> None:
    handled = Handled(0.0)
    loop = asyncio.new_event_loop()
    loop.close()
    handled.hop._loop = loop
    handled.put(1, 2)
    assert handled.hops == []
