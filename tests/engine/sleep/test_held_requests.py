"""Requests that wait for an engine to wake up count as those that wait for their first token."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atom.errors import RequestError
from atom.model_engine.front.admission.admission import Admission
from atom.model_engine.front.engine_lifecycle import EngineLifecycle

NOBODY: Any = SimpleNamespace(num_unanswered=0, unanswered_by_group={})


def asleep(*, holds_requests: bool) -> EngineLifecycle:
    lifecycle = EngineLifecycle(holds_requests=holds_requests)
    lifecycle.started(cast(Any, None))
    lifecycle.fall_asleep("asleep at level 1")
    return lifecycle


async def test_no_more_are_held_than_may_wait() -> None:
    lifecycle = asleep(holds_requests=True)
    admission = Admission(lifecycle, NOBODY, 4, fair=False)
    held = asyncio.ensure_future(admission.wait_awake(3, "a", None))
    await asyncio.sleep(0)
    admission.check(1)
    with pytest.raises(RequestError) as refusal:
        admission.check(2)
    assert refusal.value.status == 429
    lifecycle.wake_up()
    await held
    admission.check(4)


async def test_one_clients_held_requests_leave_others_room() -> None:
    admission = Admission(asleep(holds_requests=True), NOBODY, 4)
    held = asyncio.ensure_future(admission.wait_awake(4, "a", None))
    await asyncio.sleep(0)
    with pytest.raises(RequestError):
        admission.check(1, "a")
    admission.check(1, "b")
    held.cancel()


async def test_held_requests_run_out_of_their_time() -> None:
    admission = Admission(asleep(holds_requests=True), NOBODY, 1)
    for _ in range(2):  # the place of one that ran out is free
        admission.check(1)
        with pytest.raises(RequestError, match=r"held for 0\.001 s \(asleep") as refusal:
            await admission.wait_awake(1, "a", 0.001)
        assert refusal.value.status == 504


@pytest.mark.parametrize("end", ["drain", "death"])
async def test_those_held_hear_of_the_engines_end(end: str) -> None:
    lifecycle = asleep(holds_requests=True)
    admission = Admission(lifecycle, NOBODY, 1)
    held = asyncio.ensure_future(admission.wait_awake(1, "a", None))
    await asyncio.sleep(0)
    if end == "drain":
        lifecycle.begin_drain()
    else:
        lifecycle.die("it ended")
    await held  # and is refused by the check that follows
    with pytest.raises(Exception, match=r"draining|it ended"):
        admission.check(1)


async def test_requests_are_refused_unless_they_are_held() -> None:
    with pytest.raises(RequestError, match="asleep at level 1") as refusal:
        Admission(asleep(holds_requests=False), NOBODY, 1).check(1)
    assert refusal.value.status == 503
