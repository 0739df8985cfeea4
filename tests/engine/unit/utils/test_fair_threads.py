"""The compiler's threads are shared out among clients; one client's queue is its own matter."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from atom.utils.fair_threads import FairThreads, Task
from tests.support.waiting import HANG_SECONDS, wait_until

THREADS = 4


class Gated:
    """A task that ends when it is told to."""

    def __init__(self, begun: list[str], name: str) -> None:
        self._begun, self._name = begun, name
        self.gate = threading.Event()
        self.task = Task(self._work)

    def _work(self) -> str:
        self._begun.append(self._name)
        assert self.gate.wait(HANG_SECONDS)
        return self._name

    def end(self) -> None:
        self.gate.set()
        assert self.task.future.result(HANG_SECONDS) == self._name


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    threads = FairThreads(THREADS, "test")
    yield threads
    threads.close()


def test_one_clients_hopeless_tasks_delay_anothers_by_none(threads: FairThreads) -> None:
    begun: list[str] = []
    hopeless = [Gated(begun, f"a{index}") for index in range(24)]
    for gated in hopeless:
        threads.submit("a", gated.task)
    wait_until(lambda: len(begun) == THREADS - 1, "all that one client may have")
    quick = Gated(begun, "b")
    quick.gate.set()
    threads.submit("b", quick.task)
    assert quick.task.future.result(HANG_SECONDS) == "b"
    assert len(begun) == THREADS
    for gated in hopeless:
        gated.gate.set()


def test_with_all_threads_taken_the_next_that_ends_makes_room_for_who_has_none(
    threads: FairThreads,
) -> None:
    begun: list[str] = []
    first = [Gated(begun, f"{client}{index}") for index in range(9) for client in "ab"]
    for gated in first:
        threads.submit(gated.task and gated._name[0], gated.task)
    wait_until(lambda: len(begun) == THREADS, "they are all taken")
    late = Gated(begun, "c0")
    threads.submit("c", late.task)
    next(gated for gated in first if gated._name == begun[0]).end()
    wait_until(lambda: len(begun) == THREADS + 1, "one more has begun")
    assert begun[-1] == "c0"
    for gated in (*first, late):
        gated.gate.set()


def test_clients_take_turns_and_each_ones_tasks_keep_their_order() -> None:
    threads = FairThreads(1, "test")
    begun: list[str] = []
    blocker = Gated(begun, "blocker")
    threads.submit("z", blocker.task)
    wait_until(lambda: bool(begun), "it runs")
    tasks = [Gated(begun, f"{client}{index}") for client in "abc" for index in range(3)]
    for gated in tasks:
        gated.gate.set()
        threads.submit(gated._name[0], gated.task)
    blocker.end()
    for gated in tasks:
        gated.end()
    assert begun[1:] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]
    threads.close()


def test_a_task_of_two_clients_comes_in_the_first_ones_turn_and_once() -> None:
    threads = FairThreads(1, "test")
    begun: list[str] = []
    blocker, shared = Gated(begun, "blocker"), Gated(begun, "shared")
    threads.submit("a", blocker.task)
    wait_until(lambda: bool(begun), "it runs")
    others = [Gated(begun, f"a{index}") for index in range(5)]
    for gated in (*others, shared):
        gated.gate.set()
        threads.submit("a", gated.task)
    threads.submit("b", shared.task)
    blocker.end()
    for gated in (*others, shared):
        gated.end()
    assert begun[:2] == ["blocker", "shared"]
    assert begun.count("shared") == 1
    threads.close()


def test_what_waits_when_they_close_is_cancelled_and_failures_are_told() -> None:
    threads = FairThreads(1, "test")

    def fail() -> None:
        raise ValueError("as it must")

    failing = Task(fail)
    threads.submit("a", failing)
    with pytest.raises(ValueError, match="as it must"):
        failing.future.result(HANG_SECONDS)
    begun: list[str] = []
    running, waiting, late = (Gated(begun, name) for name in ("x", "y", "z"))
    threads.submit("a", running.task)
    wait_until(lambda: bool(begun), "it runs")
    threads.submit("a", waiting.task)
    threads.close()
    threads.submit("b", late.task)
    assert waiting.task.future.cancelled()
    assert late.task.future.cancelled()
    running.end()
