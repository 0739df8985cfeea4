"""How long an open request may take, whoever says so."""

from __future__ import annotations

import asyncio

import pytest

from atom.errors import RequestError
from atom.model_engine.open_requests import OpenRequests
from atom.model_engine.request_stream import RequestStream

LIMIT_SECONDS = 10


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
    await asyncio.wait_for(requests.wait_idle(LIMIT_SECONDS), LIMIT_SECONDS)
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
