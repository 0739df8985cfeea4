"""How open requests end, and that a drain is told of the end of them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import repeat

import pytest

from atom.errors import RequestError
from atom.metrics import RequestMetrics
from atom.model_engine.front.open_request import OpenRequest
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import FinishReason, Request, RequestOutput
from atom.sampling_params import SamplingParams
from tests.support.waiting import HANG_SECONDS, within

NEVER_SECONDS = 3600.0  # a drain that nobody would wait for the end of


class Book:
    """Open requests, what the engine is told of them and what is counted."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.metrics = RequestMetrics()
        self.requests = OpenRequests(OutputProcessor(None, self.metrics), self.told.extend)

    def open(self, *numbers: int) -> RequestGroup:
        return self.requests.open(repeat("name"), [request(number) for number in numbers])

    def deliver(self, *outputs: tuple[int, RequestOutput]) -> None:
        """To requests by their numbers."""
        opened = self.requests.by_number
        self.requests.deliver([(opened[number], output) for number, output in outputs])


def request(number: int) -> Request:
    return Request(number, [1], SamplingParams(), 9, arrive_time=0.0)


@pytest.mark.parametrize("bounds", [(0.01, 600.0), (600.0, 0.01), (None, 0.01), (0.01, None)])
async def test_the_least_bound_ends_it_and_the_engine_is_told(bounds) -> None:
    book = Book()
    group = book.open(1)
    book.requests.limit_time(group, bounds)
    with pytest.raises(RequestError, match=r"within 0\.01 s") as error:
        await asyncio.wait_for(anext(group), HANG_SECONDS)
    assert error.value.status == 504
    assert book.told == [1]
    assert len(book.requests) == 0


async def test_a_request_that_left_in_time_is_not_ended_again() -> None:
    book = Book()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    groups = [book.open(number) for number in (1, 2)]
    book.requests.limit_time(groups[0], [0.01])
    book.requests.limit_time(groups[1], [0.02])
    groups[0].close()
    await within(book.requests.wait_idle(NEVER_SECONDS), "both are gone")
    assert book.told == [1, 2]
    assert faults == []


async def test_only_those_that_are_open_fail() -> None:
    book = Book()
    for number in (1, 2):
        book.open(number)
    book.requests.fail_each([2, 3], lambda: RequestError("x"))
    assert book.told == [2]
    assert book.requests.fail_all(lambda: RequestError("x")) == 1
    assert book.told == [2, 1]


# ---- waiting for the last of them ---------------------------------------------------------------


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


ENDS: dict[str, Callable[[OpenRequests, OpenRequest], object]] = {
    "its last output": lambda requests, request: requests.deliver([(request, last_output())]),
    "a fault": lambda requests, request: requests.end(request, RequestError("x")),
    "the end of all": lambda requests, _: requests.fail_all(lambda: RequestError("x")),
    "its name": lambda requests, _: requests.fail_named("name", lambda: RequestError("x")),
    "its time": lambda requests, request: requests._time_out(request, 0.0),
    "its reader": lambda _, request: request.reader.group.close(),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_drain_is_over_with_the_last_request_however_it_ends(how: str) -> None:
    book = Book()
    book.open(1)
    request = book.requests.by_number[1]
    draining = asyncio.ensure_future(book.requests.wait_idle(NEVER_SECONDS))
    await asyncio.sleep(0)
    assert not draining.done(), "one is still open"
    ENDS[how](book.requests, request)
    await within(draining, f"the drain is over once {how} has ended the only request")


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
async def test_the_first_end_counts_whatever_comes_behind_it(first: str, second: str) -> None:
    """Once in the metrics, at most once in the engine, one end for the reader; nothing is open."""
    book = Book()
    group = book.open(1)
    request = book.requests.by_number[1]
    for how in (first, second):
        ENDS[how](book.requests, request)
    if first != "its last output" and "its reader" not in (first, second):
        with pytest.raises(RequestError):
            await within(anext(group), "the reader is told of the fault")
    rest = [output.finished async for found in group for _, output in found]
    assert rest == ([True] if first == "its last output" else [])
    assert sum(book.metrics.finished.values()) == 1
    assert book.told == ([] if first == "its last output" else [1])
    assert (len(book.requests), book.requests.num_unanswered) == (0, 0)


async def test_who_has_had_an_output_waits_for_no_first_token() -> None:
    book = Book()
    groups = [book.open(number) for number in (1, 2, 3)]
    assert book.requests.num_unanswered == 3
    book.deliver((1, output("a")))
    book.deliver((1, output("b")), (2, last_output()))
    assert book.requests.num_unanswered == 1
    groups[0].close()
    assert book.requests.num_unanswered == 1
    groups[2].close()
    assert book.requests.num_unanswered == 0


async def test_a_drain_waits_for_the_last_of_several() -> None:
    book = Book()
    streams = [book.open(number) for number in (1, 2)]
    draining = asyncio.ensure_future(book.requests.wait_idle(NEVER_SECONDS))
    streams[0].close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done(), "the second is still open"
    streams[1].close()
    await within(draining, "the drain is over once both have left")


async def test_nothing_open_is_nothing_to_wait_for() -> None:
    requests = Book().requests
    await within(requests.wait_idle(NEVER_SECONDS), "a server without requests drains at once")


async def test_a_request_after_the_last_is_waited_for_again() -> None:
    book = Book()
    book.open(1).close()
    second = book.open(2)
    draining = asyncio.ensure_future(book.requests.wait_idle(NEVER_SECONDS))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done(), "the second is still open"
    second.close()
    await within(draining, "the drain is over")


async def test_a_reader_of_many_answers_is_told_once_per_delivery() -> None:
    book, taken = Book(), []
    group = book.open(0, 1, 2)
    group.listen(lambda: taken.append(group.take()))
    book.deliver(*((number, output(f"{number}")) for number in range(3)), (1, output("+")))
    (found,) = taken
    assert [(index, each.text) for index, each in found] == [(0, "0"), (1, "1+"), (2, "2")]


async def test_a_fault_comes_behind_what_other_answers_of_the_call_got_before_it() -> None:
    book = Book()
    group = book.open(0, 1, 2)
    book.deliver((2, output("c")))
    for number, reason in ((2, "first"), (0, "second")):
        book.requests.end(book.requests.by_number[number], RequestError(reason))
    assert [(index, each.text) for index, each in group.take()] == [(2, "c")]
    with pytest.raises(RequestError, match="first"):
        group.take()
    assert group.drained
    assert group.take() == [], "an error is raised once"


def output(text: str) -> RequestOutput:
    return RequestOutput("name", [1], text, False, None, None, 1, 1, 0)
