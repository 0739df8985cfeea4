"""Layers that see a window: what a long prompt holds, what is found of it, what it gives back."""

from __future__ import annotations

import numpy as np

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.sizing import CacheGroup
from atom.sizing.mask_rule import sliding_window
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler
from tests.support.engine_core.scheduler_integrity import check_integrity

WINDOW, SIZE, LONGEST = 12, 4, 256
WINDOWS = (None, WINDOW)
GROUPS = (CacheGroup(), CacheGroup((), sliding_window(WINDOW)))
ONE_SEQUENCE = sum(group.blocks(LONGEST, SIZE) for group in GROUPS)


def windowed(num_blocks: int, budget: int = 32) -> FakeModel:
    return FakeModel(
        make_scheduler(
            num_blocks=num_blocks,
            max_model_len=LONGEST,
            max_num_batched_tokens=budget,
            windows=WINDOWS,
        )
    )


def output_of(batch: ScheduledBatch) -> ScheduledBatchOutput:
    return ScheduledBatchOutput(np.full(int(batch.samples.sum()), 7, dtype=np.int32))


def test_a_long_prompt_holds_its_window_and_the_chunk_that_is_computed() -> None:
    model = windowed(num_blocks=200)
    model.scheduler.add(make_request(0, 240, max_tokens=8))
    most = 0
    while model.scheduler.has_work():
        batch = model.scheduler.schedule(0.0)
        most = max(most, model.scheduler.blocks.pool.num_referenced)
        assert batch is not None
        model.scheduler.update(batch, output_of(batch))
        check_integrity(model.scheduler)
    # 60 blocks of all its tokens; 3 of the 11 tokens before a chunk, 8 of the chunk's 32
    assert most == 60 + 3 + 8


def test_where_blocks_are_for_one_sequence_chunks_are_cut_and_it_ends() -> None:
    model = windowed(ONE_SEQUENCE, budget=LONGEST)
    model.scheduler.add(make_request(0, 240, max_tokens=16))
    model.run()
    assert len(model.tokens[0]) == 16
    assert model.scheduler.stats().preemptions_total == 0
    assert len(model.batches) > 240 // WINDOW  # for a chunk there is what the window leaves


def test_a_later_prompt_finds_a_prefix_whose_window_was_left_long_ago() -> None:
    model = windowed(num_blocks=400)
    shared = list(range(100, 180))
    model.scheduler.add(make_request(0, shared + [7] * 120, max_tokens=4))
    model.run()
    model.scheduler.add(make_request(1, shared + [8] * 10, max_tokens=4))
    model.run()
    assert model.finished[1].num_cached_tokens == len(shared)


def test_what_was_promised_to_a_prompt_that_left_is_there_for_the_next() -> None:
    model = windowed(ONE_SEQUENCE, budget=4)
    for number in range(5):
        model.scheduler.add(make_request(number, [number + 10] * 250, max_tokens=4))
        model.step()
        assert model.scheduler.num_running == 1
        model.scheduler.abort([number])
        assert model.scheduler.blocks.pool.num_referenced == 0


def test_prompts_that_share_a_window_and_run_short_of_blocks_do_not_wait_for_each_other() -> None:
    """A block that left the window of one, held by the other, is no free block."""
    scheduler = make_scheduler(
        num_blocks=4, block_size=1, max_model_len=48, threshold=1, windows=(3,)
    )
    model = FakeModel(scheduler)
    scheduler.add(make_request(0, [10, 10, 10, 50, 51, 52, 53, 54], max_tokens=4))
    scheduler.add(make_request(1, [10, 10, 10, 10, 10, 10, 50], max_tokens=2))
    for _ in range(200):
        if not scheduler.has_work():
            break
        model.step()
    assert {number: len(tokens) for number, tokens in model.tokens.items()} == {0: 4, 1: 2}
    assert scheduler.blocks.pool.num_referenced == 0
