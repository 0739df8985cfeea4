"""--sleep-idle-seconds: an engine that gets no request falls asleep, and a request wakes it up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from atom.config_values import OpenRequestsMode, SleepLevel
from atom.errors import AtomError, RequestError
from atom.model_engine.control import Control
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.idle_sleep import IdleSleep, seconds_left
from atom.model_engine.front.pauses import Pauses
from tests.support.waiting import eventually


class Requests:
    """Stands for those that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.quiet_since = 0.0
        self.is_awaited = False  # that none is open
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self.open

    def begin(self) -> None:
        self.open += 1
        self._idle.clear()

    def end(self) -> None:
        self.open -= 1
        if not self.open:
            self._idle.set()

    def fail_all(self, _make_error: Any) -> None:
        while self.open:
            self.end()

    async def wait_idle(self, _seconds: float | None) -> None:
        self.is_awaited = True
        await self._idle.wait()
        self.is_awaited = False


class Core:
    """Stands for the engine processes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asleep = False
        self.fails = False

    async def call(self, call: Control[Any]) -> list[Any]:
        await asyncio.sleep(0)
        method = call.name
        if self.fails and method == "wake_up":
            raise AtomError("another process has the memory")
        assert self.asleep == (method == "wake_up"), f"{method}, asleep: {self.asleep}"
        self.asleep = method == "sleep"
        self.calls.append(method)
        return []


class Rig:
    def __init__(self) -> None:
        self.requests, self.core = Requests(), Core()
        self.lifecycle = EngineLifecycle()
        self.lifecycle.started(cast(Any, "what start-up found"))
        model: Any = SimpleNamespace(load_dummy=True)
        self.pauses = Pauses(model, self.lifecycle, cast(Any, self.requests), self.core.call)

    async def sleep(self) -> None:
        await self.pauses.sleep(SleepLevel.WEIGHTS_ON_HOST, OpenRequestsMode.WAIT)

    async def doze(self) -> None:
        await self.pauses.sleep_until_asked(60)

    async def ask(self) -> str:
        """Do as the engine does with a request, whose end the test decides."""
        try:
            self.lifecycle.check_serving()
            if self.lifecycle.held_because:
                await self.lifecycle.wait_awake()
            self.lifecycle.check_serving()
        except RequestError as refusal:
            return str(refusal)
        assert not self.core.asleep, "a request reaches an engine that sleeps"
        self.requests.begin()
        return "computed"


def test_an_engine_has_its_whole_time_since_the_last_request_and_since_it_woke_up() -> None:
    assert seconds_left(60, quiet_since=100, awake_since=50, now=130) == 30
    assert seconds_left(60, quiet_since=100, awake_since=120, now=130) == 50
    assert seconds_left(60, quiet_since=100, awake_since=50, now=160) == 0


async def test_it_falls_asleep_once_its_time_is_over_and_again_behind_a_request() -> None:
    rig, now = Rig(), 0.0
    idle = IdleSleep(0.001, rig.lifecycle, cast(Any, rig.requests), rig.pauses, lambda: now)
    idle.start()
    rig.requests.begin()
    now = 100.0
    await eventually(lambda: rig.requests.is_awaited, "it waits for the end of the request")
    assert not rig.lifecycle.is_asleep  # a request is open
    for _ in range(2):
        rig.requests.end()
        now += 100.0
        await eventually(lambda: rig.core.asleep, "it falls asleep")
        assert await rig.ask() == "computed"
    assert rig.pauses.wakes_for_requests == 2
    idle.stop()


async def test_all_that_are_held_wake_it_up_once() -> None:
    rig = Rig()
    await rig.doze()
    assert await asyncio.gather(*(rig.ask() for _ in range(5))) == ["computed"] * 5
    assert rig.core.calls == ["sleep", "wake_up"]


async def test_who_cannot_wake_it_up_hears_why_and_the_next_one_tries_again() -> None:
    rig = Rig()
    await rig.doze()
    rig.core.fails = True
    told = await asyncio.gather(*(rig.ask() for _ in range(3)))
    assert {"another process has the memory" in each for each in told} == {True}
    rig.core.fails = False
    assert await rig.ask() == "computed"


async def test_one_that_is_put_to_sleep_is_not_woken_up_by_a_request() -> None:
    rig = Rig()
    await rig.doze()
    await rig.sleep()
    assert "POST /wake_up" in await rig.ask()
    await rig.pauses.wake_up()
    assert await rig.ask() == "computed"
    await rig.doze()  # a request is open
    assert not rig.lifecycle.is_asleep


HAPPENINGS = ("ask", "end", "doze", "sleep", "wake", "break", "mend", "wait")


@given(st.lists(st.sampled_from(HAPPENINGS), max_size=30))
def test_no_request_is_lost_whatever_happens(happenings: list[str]) -> None:
    asyncio.run(_live(happenings))


async def _live(happenings: list[str]) -> None:
    rig, asked, under_way = Rig(), [], []
    for each in happenings:
        if each == "ask":
            asked.append(asyncio.ensure_future(rig.ask()))
        elif each == "end" and rig.requests.open:
            rig.requests.end()
        elif each in ("doze", "sleep", "wake"):
            call = {"doze": rig.doze, "sleep": rig.sleep, "wake": rig.pauses.wake_up}[each]
            under_way.append(asyncio.ensure_future(call()))
        elif each in ("break", "mend"):
            rig.core.fails = each == "break"
        elif each == "wait":
            await asyncio.sleep(0)
    rig.core.fails = False
    for _ in range(8 * len(happenings)):
        if rig.requests.open:  # a sleep may wait for it
            rig.requests.end()
        await asyncio.sleep(0)
    assert all(each.done() for each in (*asked, *under_way))
    for told in [each.result() for each in asked]:
        assert told == "computed" or "try again" in told
    for call in under_way:
        assert call.exception() is None or isinstance(call.exception(), AtomError)
    assert rig.core.asleep == rig.lifecycle.is_asleep
    await rig.pauses.wake_up()
    assert await rig.ask() == "computed"
