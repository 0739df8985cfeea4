"""When a waiting request gets its slot and blocks, and when it rightly does not yet."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.step_pipeline import StepPipeline
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel


def test_a_prompt_waits_while_the_step_has_no_token_left_for_it() -> None:
    model = FakeModel(make_scheduler(max_num_batched_tokens=8))
    model.scheduler.add(make_request(0, 8))
    model.scheduler.add(make_request(1, 8))
    model.step()
    assert (model.scheduler.num_running, len(model.scheduler.waiting)) == (1, 1)
    assert model.scheduler.blocks.pool.num_referenced == 2, "nothing is held for who waits"


def test_blocks_are_kept_for_those_that_run() -> None:
    """One block in a hundred: the next block of a running row costs nobody its place."""
    model = FakeModel(make_scheduler(num_blocks=200, max_model_len=800, prefix_caching=False))
    model.scheduler.add(make_request(0, 396, max_tokens=300))
    while model.scheduler.num_running == 0 or 0 not in model.tokens:
        model.step()
    pool = model.scheduler.blocks.pool
    all_but_one = make_request(1, 4 * (pool.num_free - 1), max_tokens=2)
    model.scheduler.add(all_but_one)
    model.step()
    assert len(model.scheduler.waiting) == 1
    model.scheduler.abort([0])
    model.step()
    assert len(model.scheduler.waiting) == 0


def test_who_is_alone_may_have_every_block() -> None:
    model = FakeModel(make_scheduler(num_blocks=200, max_model_len=800))
    model.scheduler.add(make_request(0, 799, max_tokens=1))
    model.run()
    assert model.tokens == {0: [7]}


def test_a_prompt_without_room_gets_in_once_somebody_elses_blocks_can_be_shared() -> None:
    """Of 16 blocks the first takes 12; the second needs as many, but 11 of them are the same."""
    model = FakeModel(make_scheduler(num_blocks=16, max_num_batched_tokens=60))
    prompt = list(range(10, 56))
    model.scheduler.add(make_request(0, prompt, max_tokens=2))
    model.scheduler.add(make_request(1, [*prompt[:45], 3], max_tokens=2))
    model.step()
    assert (model.scheduler.num_running, len(model.scheduler.waiting)) == (1, 1)
    batch = model.step()
    assert batch is not None
    assert batch.req_ids.tolist() == [0, 1]
    assert batch.num_computed_tokens.tolist()[1] == 44


def test_a_delay_holds_nobody_up_when_nothing_runs() -> None:
    model = FakeModel(make_scheduler(policy="prefill_first", delay_factor=100.0))
    model.scheduler.add(make_request(0, 5, max_tokens=2))
    model.run()
    model.scheduler.add(make_request(1, 5, arrive_time=model.clock))
    batch = model.step()
    assert batch is not None
    assert batch.req_ids.tolist() == [1]


@dataclass
class SlowPrompts(PagedModel):
    """A step takes a second, one with prompts ten."""

    clock: float = 0.0
    collected: int = 0

    def collect(self, handle: ScheduledBatchOutput) -> ScheduledBatchOutput:
        self.clock += 10.0 if self._ran_prompts(self.batches[self.collected]) else 1.0
        self.collected += 1
        return handle

    @staticmethod
    def _ran_prompts(batch: ScheduledBatch) -> bool:
        return len(batch.slots) > batch.num_decodes


def steps_until_the_next_prompt(policy: str, depth: int) -> list[ScheduledBatch]:
    """The decodes that run first, with a delay as long as a prompt takes, or somewhat longer when
    the host is a step behind."""
    scheduler = make_scheduler(policy=policy, delay_factor=1.0, prefix_caching=False)
    model = SlowPrompts(4, 64)
    pipeline = StepPipeline(scheduler, model, depth=depth)
    scheduler.add(make_request(0, 5, max_tokens=40, ignore_eos=True))
    while len(model.batches) < 3:
        pipeline.step(model.clock)
    count = len(model.batches)
    scheduler.add(make_request(1, 5, arrive_time=model.clock))
    while 1 not in model.batches[-1].req_ids:
        pipeline.step(model.clock)
    return model.batches[count:-1]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_delay_is_of_what_prompts_took_however_far_behind_the_host_is(depth: int) -> None:
    waited = steps_until_the_next_prompt("prefill_first", depth)
    assert 10 <= len(waited) <= 12


@pytest.mark.parametrize("depth", [0, 1])
def test_prompts_that_disturb_no_decode_are_not_delayed(depth: int) -> None:
    assert steps_until_the_next_prompt("mixed", depth) == []


def test_who_had_to_make_room_comes_before_those_that_arrived_later() -> None:
    scheduler = make_scheduler(num_blocks=16, max_num_seqs=2, prefix_caching=False)
    model = FakeModel(scheduler)
    for number in range(2):
        scheduler.add(make_request(number, 24, max_tokens=16, arrive_time=float(number)))
    while scheduler.stats().preemptions_total == 0:
        model.step()
    scheduler.add(make_request(2, 4, max_tokens=2, arrive_time=2.0))
    model.run()
    assert list(model.finished) == [0, 1, 2] or list(model.finished) == [0, 2, 1]
    entered = [row.request_id for batch in model.batches for row in batch.new_rows]
    assert entered == [0, 1, 1, 2], "its place in the queue is that of its arrival"
