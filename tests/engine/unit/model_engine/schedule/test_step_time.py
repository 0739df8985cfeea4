"""Prompts beside answers take as many tokens of a step as its time allows, whatever the device."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.schedule.step_time import (
    FIRST_TOKENS,
    LEAST_SHARED_SECONDS,
    LEAST_TOKENS,
    SHARED_STEPS,
    Beside,
    StepTime,
)
from atom.model_engine.scheduler import Scheduler
from tests.support.engine_core.builders_engine import make_request, make_scheduler

MOST_SECONDS = 0.2
STEP_SECONDS = 0.004  # without prompts


@dataclass
class TimedDevice:
    """A device on which a step takes a time of its own and one for each prompt token. depth: steps
    that are scheduled before the oldest one's tokens are known."""

    scheduler: Scheduler
    seconds_a_token: float
    depth: int = 0
    now: float = 0.0
    outstanding: deque[ScheduledBatch] = field(default_factory=deque)
    beside_answers: list[float] = field(default_factory=list)  # seconds of these steps
    alone: list[int] = field(default_factory=list)  # prompt tokens of the others

    def step(self) -> None:
        batch = self.scheduler.schedule(self.now)
        if batch is not None:
            self.outstanding.append(batch)
        if len(self.outstanding) > self.depth or batch is None:
            self.collect(self.outstanding.popleft())

    def run(self) -> None:
        while self.scheduler.has_work():
            self.step()
        self.scheduler.pace.pause(self.now)
        self.now += 30.0  # no request comes for a while

    def collect(self, batch: ScheduledBatch) -> None:
        prompts = batch.total_tokens_num - batch.num_decodes
        seconds = STEP_SECONDS + prompts * self.seconds_a_token
        self.now += seconds
        if prompts and batch.num_decodes:
            self.beside_answers.append(seconds)
        elif prompts:
            self.alone.append(prompts)
        sampled = np.full(int(batch.samples.sum()), 7, dtype=np.int32)
        self.scheduler.update(batch, ScheduledBatchOutput(token_ids=sampled))


def scheduler(most_seconds: float = MOST_SECONDS) -> Scheduler:
    return make_scheduler(
        num_blocks=20_000,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        max_model_len=20_000,
        max_step_seconds=most_seconds,
        prefix_caching=False,
    )


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("seconds_a_token", [1e-5, 1e-4, 1e-3])
def test_no_answer_waits_longer_than_the_bound_for_prompts(
    seconds_a_token: float, depth: int
) -> None:
    device = TimedDevice(scheduler(), seconds_a_token, depth)
    device.scheduler.add(make_request(0, 2000, max_tokens=5))
    device.run()  # by which the speed is known
    device.scheduler.add(make_request(1, 20, max_tokens=400))
    for number in range(2, 18):
        device.scheduler.add(make_request(number, 9000, max_tokens=20))
    device.run()
    assert device.beside_answers
    least = 0.004 + LEAST_TOKENS * seconds_a_token
    assert max(device.beside_answers) <= 1.1 * max(MOST_SECONDS, least)


def test_a_device_that_is_fast_enough_takes_the_whole_budget() -> None:
    bounded, free = (TimedDevice(scheduler(most), 1e-5) for most in (MOST_SECONDS, 0.0))
    for device in (bounded, free):
        for number in range(8):
            device.scheduler.add(make_request(number, 9000, max_tokens=30))
        device.run()
    assert bounded.now == free.now


@pytest.mark.parametrize(
    ("seconds_a_token", "most"), [(1e-5, 8192), (5e-5, 4000), (1e-4, 2000), (1e-3, 1024)]
)
def test_prompts_alone_take_as_many_tokens_as_time_and_throughput_allow(
    seconds_a_token: float, most: int
) -> None:
    device = TimedDevice(scheduler(), seconds_a_token)
    for number in range(3):
        device.scheduler.add(make_request(number, 16_000, max_tokens=1))
        device.run()
    assert device.alone[0] == 8192, "nothing is known of the device yet"
    assert 0.9 * most <= max(device.alone[2:]) <= most


def shared_by_clients(*, depth: int, seconds_a_token: float) -> TimedDevice:
    """One client's answer, and another's prompts that come as soon as it is under way."""
    device = TimedDevice(scheduler(), seconds_a_token, depth)
    device.scheduler.add(make_request(0, 2000, max_tokens=50, client_id="a"))
    device.run()
    device.scheduler.add(make_request(1, 20, max_tokens=900, client_id="a"))
    for number in range(2, 10):
        device.scheduler.add(make_request(number, 9000, max_tokens=20, client_id="b"))
    while device.scheduler.knows(1):
        device.step()
    return device


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("seconds_a_token", [1e-5, 1e-4, 3e-4])
def test_anothers_prompts_lengthen_a_step_to_that_of_a_few_without_prompts(
    seconds_a_token: float, depth: int
) -> None:
    device = shared_by_clients(depth=depth, seconds_a_token=seconds_a_token)
    bound = max(LEAST_SHARED_SECONDS, SHARED_STEPS * STEP_SECONDS)
    least = STEP_SECONDS + LEAST_TOKENS * seconds_a_token
    assert device.beside_answers
    assert max(device.beside_answers) <= 1.25 * max(bound, least)


def test_an_answer_on_an_unknown_device_waits_for_a_small_step_of_prompts() -> None:
    device = TimedDevice(scheduler(), 1e-3)
    device.scheduler.add(make_request(0, 20, max_tokens=900))
    for _ in range(3):
        device.step()
    for number in range(1, 9):
        device.scheduler.add(make_request(number, 9000, max_tokens=20))
    device.run()
    assert max(device.beside_answers) <= STEP_SECONDS + FIRST_TOKENS * 1e-3


def test_a_pause_between_requests_is_no_speed() -> None:
    device = TimedDevice(scheduler(), 1e-5)
    for number in range(20):
        device.scheduler.add(make_request(number, 1000, max_tokens=1))
        device.run()
        device.now += 3600.0
    budget = device.scheduler.pace.prompt_budget(8192, device.now, Beside.OWN_ANSWERS)
    assert budget == 8192, "the speed is that of the steps, each of which ended before a pause"


def test_the_average_follows_a_device_that_slows_down_and_forgets_one_long_step() -> None:
    draw = random.Random(1)
    time, now = StepTime(MOST_SECONDS), 0.0

    def step(seconds_a_token: float) -> int:
        nonlocal now
        budget = time.prompt_budget(8192, now, Beside.OWN_ANSWERS)
        time.began(now, budget)
        now += budget * seconds_a_token * draw.uniform(0.9, 1.1)
        time.ended()
        return budget

    for _ in range(20):
        step(1e-5)
    step(1.0)  # the machine stood still
    for _ in range(20):
        fast = step(1e-5)
    assert fast == 8192
    for _ in range(20):
        slow = step(1e-4)
    assert 1500 < slow < 2500


def test_without_a_bound_nothing_is_kept() -> None:
    time = StepTime(0.0)
    for now in range(100):
        assert time.prompt_budget(8192, float(now), Beside.OWN_ANSWERS) == 8192
        time.began(float(now), 8192)
        time.ended()
        time.pause(float(now))
