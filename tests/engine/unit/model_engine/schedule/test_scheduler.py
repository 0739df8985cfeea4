"""What the scheduler promises: budgets, order, no delayed decode, progress under little memory."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.model_engine.block_manager import BlockManager
from tests.support.engine_core.builders_engine import EOS, FakeModel, make_request, make_scheduler
from tests.support.random_search import examples


def test_prompts_and_decodes_share_one_batch_decodes_first() -> None:
    model = FakeModel(make_scheduler(prefix_caching=False))
    model.scheduler.add(make_request(0, 5))
    model.step()
    model.scheduler.add(make_request(1, 6))
    batch = model.step()
    assert batch is not None
    assert batch.req_ids.tolist() == [0, 1]
    assert batch.num_scheduled_tokens.tolist() == [1, 6]
    assert batch.num_decodes == 1


def test_long_prompt_is_computed_in_chunks_within_the_token_budget() -> None:
    model = FakeModel(make_scheduler(max_num_batched_tokens=8, max_num_seqs=2))
    model.scheduler.add(make_request(0, 20, max_tokens=1))
    model.run()
    assert [b.num_scheduled_tokens.tolist() for b in model.batches] == [[8], [8], [4]]
    assert [b.samples.tolist() for b in model.batches] == [[False], [False], [True]]
    assert model.tokens == {0: [7]}


def test_no_decode_waits_while_a_long_prompt_is_computed() -> None:
    model = FakeModel(make_scheduler(max_num_batched_tokens=8, max_num_seqs=4))
    model.scheduler.add(make_request(0, 4, max_tokens=30))
    model.step()
    model.scheduler.add(make_request(1, 30))
    while len(model.tokens.get(1, [])) == 0:
        batch = model.step()
        assert batch is not None
        assert 0 in batch.req_ids
        assert batch.total_tokens_num <= 8


def test_threshold_bounds_the_chunk_of_one_prompt() -> None:
    model = FakeModel(make_scheduler(threshold=4))
    model.scheduler.add(make_request(0, 10))
    model.scheduler.add(make_request(1, 3))
    batch = model.step()
    assert batch is not None
    assert batch.num_scheduled_tokens.tolist() == [4, 3]


def test_prefill_first_runs_prompts_alone_then_decodes() -> None:
    model = FakeModel(make_scheduler(policy="prefill_first"))
    model.scheduler.add(make_request(0, 5, max_tokens=3))
    model.step()
    model.scheduler.add(make_request(1, 6, max_tokens=3))
    model.run()
    shapes = [(b.num_decodes, len(b.slots) - b.num_decodes) for b in model.batches]
    assert shapes == [(0, 1), (0, 1), (2, 0), (2, 0)]


def test_delay_factor_waits_for_more_prompts_while_others_run() -> None:
    model = FakeModel(make_scheduler(policy="prefill_first", delay_factor=3.0))
    model.scheduler.add(make_request(0, 5, max_tokens=20))
    model.step()  # prefill; one second per step, so the last prompt took one second
    model.scheduler.add(make_request(1, 5, arrive_time=model.clock))
    waited = []
    while 1 not in model.tokens:
        batch = model.step()
        assert batch is not None
        waited.append(batch.num_decodes)
    assert waited == [1, 1, 1, 0]


def test_sequences_beyond_max_num_seqs_wait() -> None:
    model = FakeModel(make_scheduler(max_num_seqs=2))
    for request_id in range(3):
        model.scheduler.add(make_request(request_id, 3))
    model.step()
    assert (model.scheduler.num_running, len(model.scheduler.waiting)) == (2, 1)
    model.run()
    assert sorted(model.finished) == [0, 1, 2]


def test_youngest_is_preempted_and_finishes_later_with_all_its_tokens() -> None:
    model = FakeModel(make_scheduler(num_blocks=16, max_num_seqs=4, prefix_caching=False))
    for request_id in range(3):
        model.scheduler.add(make_request(request_id, 16, max_tokens=8))
    model.run()
    assert model.scheduler.stats().preemptions_total > 0
    assert {len(tokens) for tokens in model.tokens.values()} == {8}
    first_done = next(iter(model.finished))
    assert first_done == 0, "the oldest never makes room"


def test_the_least_urgent_is_preempted_whoever_came_last() -> None:
    model = FakeModel(make_scheduler(num_blocks=16, max_num_seqs=4, prefix_caching=False))
    for request_id, priority in enumerate((9, 0, 0)):
        model.scheduler.add(make_request(request_id, 16, max_tokens=8, priority=priority))
    model.run()
    assert model.scheduler.stats().preemptions_total > 0
    assert list(model.finished)[-1] == 0
    assert {len(tokens) for tokens in model.tokens.values()} == {8}


def test_an_urgent_request_is_admitted_before_those_that_waited() -> None:
    model = FakeModel(make_scheduler(max_num_seqs=1))
    for request_id, priority in enumerate((0, 0, 0, -1)):
        model.scheduler.add(make_request(request_id, 5, priority=priority))
    model.run()
    assert list(model.finished) == [3, 0, 1, 2]


class CountingBlocks(BlockManager):
    """Counts how often a prompt is looked up."""

    lookups = 0

    def match_prefix(self, tokens, salt="", lora=None):
        self.lookups += 1
        return super().match_prefix(tokens, salt, lora)


def test_a_prompt_that_blocks_are_short_for_is_looked_up_again_only_after_some_were_freed() -> None:
    model = FakeModel(make_scheduler(num_blocks=16, max_num_seqs=4, blocks_type=CountingBlocks))
    blocks = cast(CountingBlocks, model.scheduler.blocks)
    model.scheduler.add(make_request(0, 30, max_tokens=20))
    model.step()
    model.scheduler.add(make_request(1, [3] * 40, max_tokens=1))
    for _ in range(3):
        model.step()
    looked_up = blocks.lookups
    for _ in range(10):
        model.step()
    assert blocks.lookups == looked_up, "nothing had changed"
    model.run()
    assert list(model.finished) == [0, 1]


def test_all_blocks_are_free_after_everything_ended() -> None:
    model = FakeModel(make_scheduler())
    for request_id in range(5):
        model.scheduler.add(make_request(request_id, 9))
    model.step()
    model.scheduler.abort([1, 3])
    model.run()
    assert model.scheduler.blocks.pool.num_referenced == 0
    assert not model.scheduler.has_work()


@pytest.mark.parametrize("running", [False, True])
def test_abort_ends_waiting_and_running_requests(running: bool) -> None:
    model = FakeModel(make_scheduler(max_num_seqs=1))
    model.scheduler.add(make_request(0, 5))
    model.scheduler.add(make_request(1, 5))
    model.step()
    (row,) = model.scheduler.abort([0 if running else 1])
    assert (row.reason, row.detail) == ("abort", "aborted")
    assert model.scheduler.abort([row.request_id]) == [], "twice is once"
    model.run()
    assert list(model.finished) == [1 if running else 0]


@pytest.mark.parametrize(
    ("params", "token", "reason", "detail", "count"),
    [
        ({}, EOS, "stop", "eos", 1),
        ({"ignore_eos": True}, EOS, "length", "max_tokens", 4),
        ({"stop_token_ids": (9,)}, 9, "stop", "stop_9", 1),
        ({"stop_token_ids": (9,)}, 8, "length", "max_tokens", 4),
    ],
)
def test_what_ends_a_request(params, token, reason, detail, count) -> None:
    model = FakeModel(make_scheduler(), token=token)
    model.scheduler.add(make_request(0, 5, **params))
    model.run()
    assert (model.finished[0].reason, model.finished[0].detail) == (reason, detail)
    assert model.tokens[0] == [token] * count


def test_second_request_with_the_same_prompt_computes_only_what_is_new() -> None:
    model = FakeModel(make_scheduler())
    model.scheduler.add(make_request(0, 12, max_tokens=1))
    model.run()
    model.scheduler.add(make_request(1, 12, max_tokens=1))
    batch = model.step()
    assert batch is not None
    assert batch.num_computed_tokens.tolist() == [8], "two of three blocks: one token must be new"
    assert model.finished[1].num_cached_tokens == 8


def test_chunks_become_shareable_as_soon_as_they_are_computed() -> None:
    model = FakeModel(make_scheduler(max_num_batched_tokens=8, max_num_seqs=4))
    model.scheduler.add(make_request(0, 20))
    model.step()
    model.scheduler.add(make_request(1, 20))
    model.step()
    while 1 not in model.tokens:
        model.step()
    model.run()
    assert model.finished[1].num_cached_tokens >= 8


def test_same_tokens_after_another_prefix_are_not_shared() -> None:
    model = FakeModel(make_scheduler())
    model.scheduler.add(make_request(0, [1, 1, 1, 1, 5, 6, 7, 8, 9], max_tokens=1))
    model.run()
    model.scheduler.add(make_request(1, [3, 3, 3, 3, 5, 6, 7, 8, 9], max_tokens=1))
    model.run()
    assert model.finished[1].num_cached_tokens == 0


@settings(max_examples=examples(16), deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12),
    num_blocks=st.integers(16, 40),
    budget=st.integers(8, 40),
    policy=st.sampled_from(["mixed", "prefill_first"]),
    prefix_caching=st.booleans(),
)
def test_everything_ends_with_its_tokens_whatever_the_load(
    prompts, num_blocks, budget, policy, prefix_caching
) -> None:
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        policy=policy,
        prefix_caching=prefix_caching,
    )
    model = FakeModel(scheduler)
    for request_id, (length, new_tokens) in enumerate(prompts):
        scheduler.add(make_request(request_id, length, max_tokens=new_tokens))
    model.run(limit=5000)
    assert {i: len(t) for i, t in model.tokens.items()} == {i: p[1] for i, p in enumerate(prompts)}
    assert all(b.total_tokens_num <= budget for b in model.batches)
    assert scheduler.blocks.pool.num_referenced == 0


def test_a_draft_per_sequence_costs_memory_from_the_block_before_on() -> None:
    """With one speculative token a row has its next block a token early, but none past its end."""
    plain, drafting = (
        FakeModel(make_scheduler(num_speculative_tokens=drafts)) for drafts in (0, 1)
    )
    for model in (plain, drafting):
        model.scheduler.add(make_request(0, 4, max_tokens=8))
    held: list[tuple[int, int]] = []
    while plain.scheduler.has_work():
        for model in (plain, drafting):
            model.step()
        held.append(tuple(m.scheduler.blocks.pool.num_referenced for m in (plain, drafting)))  # type: ignore[arg-type]
    # After the prompt of four, whose block is full, tokens five to twelve.
    assert held == [(1, 2), (2, 2), (2, 2), (2, 2), (2, 3), (3, 3), (3, 3), (0, 0)]


def test_the_patient_are_served_under_an_endless_stream_of_urgent_requests() -> None:
    model = FakeModel(make_scheduler(max_num_seqs=1))
    model.scheduler.add(make_request(0, 3, max_tokens=1, priority=6))
    for number in range(1, 40):
        model.scheduler.add(make_request(number, 3, max_tokens=1, arrive_time=model.clock))
        model.step()  # one second, one request
        if 0 in model.finished:
            break
    overtook = [request for request in model.finished if request != 0]
    assert 0 in model.finished
    assert len(overtook) in (6, 7), "six steps of priority are worth six seconds"
