"""Bodies of reviews have bounds together: whoever reaches the webhook takes no memory and no time
from others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atom_operator.webhook.review_body import BOUNDS, BodyLimits, BodyRefusedError, ReviewBodies
from tests.support.operator.builders_admission import creation
from tests.support.virtual_time import run_virtually

LIMITS = BodyLimits(small_bytes=1000, budget_bytes=5000, readers=8, seconds=5.0)
SMALL = json.dumps(creation()).encode()


async def chunks(body: bytes, size: int = 700, *, stops: bool = False) -> AsyncIterator[bytes]:
    """A body in pieces; one that `stops` never comes to its end."""
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(0)
    if stops:
        await asyncio.Event().wait()


async def read(bodies: ReviewBodies, body: bytes, *, stops: bool = False) -> Any:
    try:
        async with bodies.parsed(chunks(body, stops=stops)) as found:
            return found
    except BodyRefusedError as error:
        return error.status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 200_000, 400),
        (b'{"a":[' + b"{}," * 400_000 + b"{}]}", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b" " * (BOUNDS.most_bytes + 1), 413),
    ],
    ids=["deep", "many values", "torn", "no UTF-8", "long"],
)
def test_texts_that_cost_much_are_refused_with_a_code(body: bytes, status: int) -> None:
    async def test() -> None:
        bodies = ReviewBodies()
        async with asyncio.timeout(None):
            assert await read(bodies, body) == status
        assert bodies.held_bytes == 0
        assert await read(bodies, SMALL) == creation()

    asyncio.run(test())


@settings(max_examples=30)
@given(some.lists(some.tuples(some.integers(0, 4000), some.booleans()), max_size=30))
def test_slow_and_large_ones_take_no_more_than_the_budget(asked: list[tuple[int, bool]]) -> None:
    async def test() -> None:
        bodies = ReviewBodies(LIMITS)
        reading = [
            asyncio.create_task(read(bodies, b"[" + b" " * size + b"]", stops=stops))
            for size, stops in asked
        ]
        for _ in range(20):
            await asyncio.sleep(0)
            assert bodies.held_bytes <= LIMITS.budget_bytes
        await asyncio.gather(*reading)
        assert bodies.held_bytes == 0
        assert await read(bodies, SMALL) == creation()

    run_virtually(test())


def test_small_ones_are_read_beside_large_ones_that_wait() -> None:
    async def test() -> None:
        bodies = ReviewBodies(LIMITS)
        waiting = [asyncio.create_task(read(bodies, b" " * 3400, stops=True)) for _ in range(2)]
        await asyncio.sleep(1)
        assert bodies.held_bytes == 2 * 2400
        assert await read(bodies, b" " * 3400) == 503
        assert await read(bodies, b"[1]") == [1]
        assert await asyncio.gather(*waiting) == [408, 408]

    run_virtually(test())
