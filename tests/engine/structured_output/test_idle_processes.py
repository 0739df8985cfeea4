"""A process that follows a grammar waits for the next sequence of it, for a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from atom.model_engine.structured_output.idle_processes import (
    IDLE_SECONDS,
    MOST_IDLE,
    IdleProcesses,
)
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from tests.support.structured_output.guided_sequences import GuidedSequences
from tests.support.structured_output.matcher_processes import matcher_processes
from tests.support.waiting import wait_until


class Clock:
    """A clock and its timers, which ring when the time is moved."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        timer = (self.now + seconds, call)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer)

    def move(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        for timer in due:
            self.timers.remove(timer)
            timer[1]()


def idle_by(clock: Clock, wake: Callable[[], None]) -> IdleProcesses:
    return IdleProcesses(wake, clock=clock, timer=clock.after)


def links(count: int) -> list[Any]:
    """Stand for processes: they are told apart, and nothing else."""
    return [object() for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_each_process_ends_when_it_has_waited_long_enough_and_no_sooner(seed: int) -> None:
    draw, clock = random.Random(seed), Clock()
    idle = idle_by(clock, lambda: None)
    since: dict[Any, float] = {}
    known = links(6)
    for _ in range(300):
        link = draw.choice(known)
        if link not in since:
            since[link] = clock.now
            assert idle.put(link) == []
        elif draw.random() < 0.3:
            del since[link]
            idle.discard(link)
        clock.move(draw.uniform(0, IDLE_SECONDS / 4))
        over = [each for each, begun in since.items() if begun + IDLE_SECONDS <= clock.now]
        assert idle.take_overdue() == over
        for each in over:
            del since[each]
        assert len(clock.timers) <= 1


def test_the_longest_idle_end_first_if_too_many_wait() -> None:
    idle, many = idle_by(Clock(), lambda: None), links(MOST_IDLE + 2)
    assert [idle.put(link) for link in many[:MOST_IDLE]] == [[]] * MOST_IDLE
    idle.discard(many[0])
    idle.put(many[0])
    assert idle.put(many[-2]) == [many[1]]
    assert idle.put(many[-1]) == [many[2]]


def test_the_owner_is_woken_when_one_is_overdue_and_a_closed_one_wakes_nobody() -> None:
    woken: list[int] = []
    clock = Clock()
    idle = idle_by(clock, lambda: woken.append(1))
    idle.put(links(1)[0])
    clock.move(IDLE_SECONDS)
    assert woken == [1]
    assert len(idle.take_overdue()) == 1
    idle.put(links(1)[0])
    idle.close()
    assert clock.timers == []


def test_an_idle_process_ends_and_the_next_request_of_its_grammar_starts_another(
    tmp_path: Path,
) -> None:
    clock = Clock()
    guided = GuidedSequences(tmp_path, make_idle=lambda wake: idle_by(clock, wake))
    asked = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-c]{3}"))
    assert asked.structured_outputs is not None
    try:
        before = {process.pid for process in matcher_processes()}
        kept: list[set[int]] = []
        for number in (1, 2, 3):
            rows = guided.rows_of(number, asked.structured_outputs.spec(), asked)
            kept.append({process.pid for process in matcher_processes()} - before)
            rows.leave([number])
            guided.pool.wait()
            guided.pool.poll(0.0)
            if number == 2:
                clock.move(IDLE_SECONDS)
                guided.pool.wait()
                guided.pool.poll(0.0)
                wait_until(
                    lambda: not {process.pid for process in matcher_processes()} - before,
                    "the idle process ended",
                )
        assert kept[0] == kept[1]
        assert len(kept[2]) == 1
        assert kept[2].isdisjoint(kept[0])
    finally:
        guided.close()


def test_processes_that_follow_grammars_give_way_to_the_engine(tmp_path: Path) -> None:
    guided = GuidedSequences(tmp_path)
    asked = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-c]{3}"))
    assert asked.structured_outputs is not None
    try:
        before = {process.pid for process in matcher_processes()}
        guided.rows_of(1, asked.structured_outputs.spec(), asked)
        ours = [each for each in matcher_processes() if each.pid not in before]
        lowest = min(19, psutil.Process().nice() + 11)  # also than a server at a niceness of 10
        assert ours  # another test's processes may start meanwhile
        assert all(process.nice() >= lowest for process in ours)
    finally:
        guided.close()
