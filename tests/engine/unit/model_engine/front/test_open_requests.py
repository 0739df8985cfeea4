"""How open requests end, and that whoever waits for the end of them all is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from atom.errors import RequestError
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.request_stream import ReaderWake, RequestGroup, RequestStream
from atom.model_engine.request import FinishReason, RequestOutput
from tests.support.waiting import within

LIMIT_SECONDS = 10
NEVER_SECONDS = 3600.0  # a drain that nobody would wait for the end of


@pytest.mark.parametrize("bounds", [(0.01, 600.0), (600.0, 0.01), (None, 0.01), (0.01, None)])
async def test_the_least_bound_ends_it_and_the_engine_is_told(bounds) -> None:
    told: list[int] = []
    requests = OpenRequests(told.append)
    stream = RequestStream("name", 1, abort=lambda: requests.leave(1))
    requests.open(1, stream)
    requests.limit_time([1], bounds)
    with pytest.raises(RequestError, match=r"within 0\.01 s") as error:
        await asyncio.wait_for(anext(stream), LIMIT_SECONDS)
    assert error.value.status == 504
    assert told == [1]
    assert len(requests) == 0


async def test_a_request_that_left_in_time_is_not_ended_again() -> None:
    told: list[int] = []
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    requests = OpenRequests(told.append)
    for number in (1, 2):
        requests.open(number, RequestStream("name", 1, abort=lambda: None))
    requests.limit_time([1], [0.01])
    requests.limit_time([2], [0.02])
    requests.leave(1)
    await within(requests.wait_idle(NEVER_SECONDS), "both are gone")
    assert told == [1, 2]
    assert faults == []


async def test_only_those_that_are_open_fail() -> None:
    told: list[int] = []
    requests = OpenRequests(told.append)
    for number in (1, 2):
        requests.open(number, RequestStream("name", 1, abort=lambda: None))
    requests.fail_each([2, 3], lambda: RequestError("x"))
    assert told == [2]
    assert requests.fail_all(lambda: RequestError("x")) == 1
    assert told == [2, 1]


# ---- waiting for the last of them ---------------------------------------------------------------


def open_one(requests: OpenRequests, number: int) -> RequestStream:
    stream = RequestStream("name", 1, abort=lambda: requests.leave(number))
    requests.open(number, stream)
    return stream


def last_output() -> RequestOutput:
    return RequestOutput(
        request_id="name",
        output_tokens=[5],
        text="a",
        finished=True,
        finish_reason=FinishReason.LENGTH,
        finish_detail="max_tokens",
        num_prompt_tokens=1,
        num_output_tokens=1,
        num_cached_tokens=0,
    )


ENDS: dict[str, Callable[[OpenRequests, RequestStream], object]] = {
    "its last output": lambda requests, _: requests.deliver([(1, last_output())]),
    "a fault": lambda requests, _: requests.fail(1, RequestError("x")),
    "the end of all": lambda requests, _: requests.fail_all(lambda: RequestError("x")),
    "its name": lambda requests, _: requests.fail_named("name", lambda: RequestError("x")),
    "its time": lambda requests, _: requests.limit_time([1], [0.0]),
    "its reader": lambda _, stream: stream.close(),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_drain_is_over_with_the_last_request_however_it_ends(how: str) -> None:
    requests = OpenRequests(lambda number: None)
    stream = open_one(requests, 1)
    draining = asyncio.ensure_future(requests.wait_idle(NEVER_SECONDS))
    await asyncio.sleep(0)
    assert not draining.done(), "one is still open"
    ENDS[how](requests, stream)
    await within(draining, f"the drain is over once {how} has ended the only request")


async def test_a_drain_waits_for_the_last_of_several() -> None:
    requests = OpenRequests(lambda number: None)
    streams = [open_one(requests, number) for number in (1, 2)]
    draining = asyncio.ensure_future(requests.wait_idle(NEVER_SECONDS))
    streams[0].close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done(), "the second is still open"
    streams[1].close()
    await within(draining, "the drain is over once both have left")


async def test_nothing_open_is_nothing_to_wait_for() -> None:
    requests = OpenRequests(lambda number: None)
    await within(requests.wait_idle(NEVER_SECONDS), "a server without requests drains at once")


async def test_a_request_after_the_last_is_waited_for_again() -> None:
    requests = OpenRequests(lambda number: None)
    open_one(requests, 1).close()
    second = open_one(requests, 2)
    draining = asyncio.ensure_future(requests.wait_idle(NEVER_SECONDS))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done(), "the second is still open"
    second.close()
    await within(draining, "the drain is over")


async def test_a_reader_of_many_answers_is_told_once_per_delivery() -> None:
    requests, wake, taken = OpenRequests(lambda number: None), ReaderWake(), []
    streams = [RequestStream("name", 1, abort=lambda: None, wake=wake) for _ in range(3)]
    group = RequestGroup(streams, wake)
    for number, stream in enumerate(streams):
        requests.open(number, stream)
    group.listen(lambda: taken.append(group.take()))
    step = [(number, output(f"{number}")) for number in range(3)]
    requests.deliver([*step, (1, output("+"))])
    (found,) = taken
    assert [(index, each.text) for index, each in found] == [(0, "0"), (1, "1+"), (2, "2")]


def output(text: str) -> RequestOutput:
    return RequestOutput("name", [1], text, False, None, None, 1, 1, 0)
