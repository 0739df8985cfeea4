"""Replaying: any schedule is kept to on a clock that jumps, and so is any trace."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.bench.replay import Departure, replay
from tests.support.virtual_time import run_virtually

# Sums of halves are exact, so that times can be compared as they are.
seconds = st.integers(0, 40).map(lambda halves: halves / 2)


@st.composite
def departures(draw: st.DrawFn) -> list[Departure]:
    drawn = []
    for place in range(draw(st.integers(1, 12))):
        after = draw(st.lists(st.integers(0, place - 1), max_size=3)) if place else []
        drawn.append(Departure(draw(seconds), tuple(after), draw(seconds)))
    return drawn


@dataclass
class Seen:
    """starts and ends in seconds, by place; most: the most at once; order: of the starts."""

    starts: dict[int, float]
    ends: dict[int, float]
    order: list[int]
    most: int = 0


def watch(plan: list[Departure], service: list[float], limit: int | None = None) -> Seen:
    seen = Seen({}, {}, [])

    async def send(place: int) -> int:
        now = asyncio.get_running_loop().time
        assert place not in seen.starts, "each is sent once"
        seen.starts[place] = now()
        seen.order.append(place)
        seen.most = max(seen.most, len(seen.starts) - len(seen.ends))
        await asyncio.sleep(service[place])
        seen.ends[place] = now()
        return place

    assert run_virtually(replay(plan, send, limit)) == list(range(len(plan)))
    return seen


def due(departure: Departure, ends: dict[int, float]) -> float:
    answered = [ends[place] + departure.delay_seconds for place in departure.after]
    return max([departure.at_seconds, *answered])


@given(departures(), st.data())
def test_each_is_sent_when_its_time_and_its_thinking_say(
    plan: list[Departure], data: st.DataObject
) -> None:
    service = data.draw(st.lists(seconds, min_size=len(plan), max_size=len(plan)))
    seen = watch(plan, service)
    for place, departure in enumerate(plan):
        assert seen.starts[place] == due(departure, seen.ends)
    # Requests of one moment start in the order in which they stand.
    firsts = [place for place in seen.order if not plan[place].after]
    assert firsts == sorted(firsts, key=lambda place: (plan[place].at_seconds, place))


@given(departures(), st.integers(1, 3), st.data())
def test_no_more_than_the_limit_are_in_flight_and_room_is_used_at_once(
    plan: list[Departure], limit: int, data: st.DataObject
) -> None:
    service = data.draw(st.lists(seconds, min_size=len(plan), max_size=len(plan)))
    seen = watch(plan, service, limit)
    assert seen.most <= limit
    for place, departure in enumerate(plan):
        start = seen.starts[place]
        assert start >= due(departure, seen.ends)
        if start > due(departure, seen.ends):
            assert start in seen.ends.values(), "it waited for room, and took it when it came"


@pytest.mark.parametrize("after", [0, 1, -1])
def test_nothing_waits_for_itself_or_a_later_one(after: int) -> None:
    async def send(place: int) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match=f"request 0 waits for request {after}"):
        run_virtually(replay([Departure(after=(after,)), Departure()], send))


def test_what_a_sender_raises_ends_the_replay() -> None:
    async def send(place: int) -> None:
        await asyncio.sleep(place)
        raise OSError("gone")

    with pytest.raises(ExceptionGroup) as caught:
        run_virtually(replay([Departure(), Departure(5.0)], send))
    assert caught.group_contains(OSError, match="gone")
