"""What a scheduler remembers of requests that have ended: nothing."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import numpy as np
import pytest

from atom.model_engine.scheduler import Scheduler
from benchmarks.scheduler import MEMORY_REQUESTS, grown_bytes
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

WAVE = 40


def serve(scheduler: Scheduler, waves: int, numbers: itertools.count[int]) -> None:
    """Prompts nobody has sent before; some aborted while they wait, some preempted."""
    draw = np.random.default_rng(next(numbers))
    for _ in range(waves):
        ids = list(itertools.islice(numbers, WAVE))
        for number in ids:
            prompt = draw.integers(10, 10_000, size=30).tolist()
            scheduler.add(
                make_request(
                    number,
                    prompt,
                    max_tokens=12,
                    priority=number % 5,
                    client_id=f"{number % 3}/{number}",
                )
            )
        scheduler.abort(ids[::10])
        FakeModel(scheduler).run(limit=5000)


def test_memory_does_not_grow_with_the_requests_served() -> None:
    scheduler, numbers = make_scheduler(num_blocks=48), itertools.count()
    serve(scheduler, 6, numbers)
    tracemalloc.start()
    try:
        serve(scheduler, 2, numbers)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        serve(scheduler, 12, numbers)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert scheduler.stats().preemptions_total > 0
    # A byte per served token would be 20,000: what remains is the pool's lists changing shape.
    assert grown < 10_000


@pytest.mark.slow
def test_resident_memory_does_not_grow_over_a_hundred_thousand_requests() -> None:
    assert MEMORY_REQUESTS == 100_000
    assert grown_bytes() < 2 * 2**20
