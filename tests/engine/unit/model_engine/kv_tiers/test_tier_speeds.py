"""A tier whose speed changes: pages that do not pay are computed, and are tried again in time.

Pages of one byte and prompts of six of them, on a simulated clock. The host's pages and files go by
the same rule (schedule/read_speed.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from atom.model_engine.schedule import read_speed
from atom.model_engine.schedule.read_speed import PROBE_SECONDS
from tests.engine.unit.model_engine.kv_tiers.test_tier_rules import SIZE, Mover, World, prompt
from tests.support.engine_core.paged_files import PagedFiles
from tests.support.engine_core.paged_mover import PagedMover

TOKEN_SECONDS = 1 / SIZE  # a page is computed in a second


@pytest.fixture(autouse=True)
def speeds_of_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_speed, "LEAST_MEASURED_BYTES", 1)
    monkeypatch.setattr(read_speed, "MOST_MEASURED_BYTES", 24)


class Tier:
    """A world whose pages are read from the host or, if that is small, from files."""

    def __init__(self, kind: str, seconds: float) -> None:
        self._mover = Mover()
        self._files = None
        pages = 50
        if kind == "files":
            self._files, pages = PagedFiles(cast(PagedMover, self._mover)), 9
        self.world = World(self._mover, files=self._files, pages=pages)
        self.seconds = seconds
        self._filler = 10

    @property
    def seconds(self) -> float:
        raise AttributeError

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        """Of reading a page."""
        if self._files is None:
            self._mover.seconds = seconds
        else:
            self._files.page_seconds = seconds

    def settle(self) -> None:
        for _ in range(4):
            self.world.step()

    def forget(self) -> None:
        """Let other prompts take the places on the device and, before files, in the host."""
        for _ in range(2):
            self._filler += 1
            self.world.compute(prompt(self._filler, blocks=8))
            self.settle()

    def reads(self, number: int) -> bool:
        return self.world.reads(prompt(number), seconds_a_token=TOKEN_SECONDS)


@pytest.fixture(params=["host", "files"])
def slow(request: pytest.FixtureRequest) -> Iterator[Tier]:
    """Three prompts are in the tier, which has been slow once."""
    tier = Tier(request.param, seconds=4.0)
    for number in (1, 2, 3):
        tier.world.compute(prompt(number))
        tier.settle()
    tier.forget()
    assert tier.reads(1), "no page was read yet, so nothing is known"
    tier.settle()
    tier.forget()
    assert not tier.reads(2)
    yield tier
    tier.world.finish()


def test_a_tier_that_is_fast_again_is_found(slow: Tier) -> None:
    slow.seconds = 0.1
    slow.world.now += PROBE_SECONDS - 1
    slow.settle()
    assert not slow.reads(2), "a probe is not due"
    slow.world.now += 1
    slow.settle()
    assert slow.reads(2)
    assert not slow.reads(3), "the others do not wait for a probe"
    slow.settle()
    assert slow.reads(3)


def test_a_tier_that_is_still_slow_is_left_alone_for_as_long_again(slow: Tier) -> None:
    slow.world.now += PROBE_SECONDS
    slow.settle()
    assert slow.reads(2)
    slow.settle()
    for _ in range(3):
        assert not slow.reads(3)
        slow.world.now += PROBE_SECONDS / 4
        slow.settle()
    slow.world.now += PROBE_SECONDS / 4
    slow.settle()
    assert slow.reads(3)


@pytest.mark.parametrize("kind", ["host", "files"])
def test_a_tier_that_becomes_slow_is_left_after_a_bounded_number_of_reads(kind: str) -> None:
    tier = Tier(kind, seconds=0.1)
    tier.world.compute(prompt(1))
    tier.settle()
    for seconds in (*[0.1] * 6, 30.0):
        tier.seconds = seconds
        tier.forget()
        assert tier.reads(1)
        tier.settle()
    tier.forget()
    assert not tier.reads(1)
    tier.world.finish()


def test_pages_are_written_again_if_only_a_new_page_could_tell_the_speed() -> None:
    """The tier has none that a request asks for, since it was too slow for pages to be written."""
    tier = Tier("host", seconds=4.0)
    tier.world.compute(prompt(1))
    tier.forget()
    assert tier.reads(1)
    tier.settle()
    assert not tier.reads(2), "computing is fast, and no page of it is known"
    written = tier.world.saved
    tier.forget()
    assert tier.world.saved == written
    tier.world.now += PROBE_SECONDS
    tier.world.compute(prompt(2))
    tier.forget()
    assert tier.world.saved > written
    tier.seconds = 0.1
    assert tier.reads(2), "a probe"
    tier.settle()
    tier.forget()
    assert tier.reads(1), "the tier is fast"
    tier.settle()
    tier.world.finish()
