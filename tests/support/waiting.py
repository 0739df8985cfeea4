"""Waiting for a condition or an end, with a deadline instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# Only bounds a hang: nothing is ever waited for longer than it takes, however slow the machine.
HANG_SECONDS = 300.0
_POLL_SECONDS = 0.02

Result = TypeVar("Result")


def wait_until(
    condition: Callable[[], bool],
    what: str,
    seconds: float = HANG_SECONDS,
    *,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """poll_seconds: between two looks; 0 for a condition that works on what it waits for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(poll_seconds)


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = HANG_SECONDS
) -> None:
    """Wait in the test's event loop. condition: may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not await _holds(condition):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(_POLL_SECONDS)


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    answer = condition()
    return answer if isinstance(answer, bool) else await answer


async def within(work: Awaitable[Result], what: str, seconds: float = HANG_SECONDS) -> Result:
    """What `work` gives. A test that could hang says instead what did not happen."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
