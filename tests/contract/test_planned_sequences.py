"""What a plan says fits at the same time, the scheduler runs at the same time, to the block."""

from __future__ import annotations

import pytest

from atom.sizing import CacheGroup, DeviceMemory, KvBudget, KvLayout, RunLimits, plan_kv_cache
from atom.sizing.mask_rule import sliding_window
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

WINDOWS: list[tuple[int | None, ...]] = [(None,), (40,), (None, 40), (None, 18, 70, None)]


def planned(windows: tuple[int | None, ...], num_blocks: int, drafts: int) -> KvBudget:
    groups = tuple(
        CacheGroup((number,), sliding_window(window)) for number, window in enumerate(windows)
    )
    memory = DeviceMemory(
        total_bytes=num_blocks * 160,
        utilization=1.0,
        weights_bytes=0,
        activation_bytes=0,
        overhead_bytes=0,
    )
    limits = RunLimits(
        block_size=16, max_num_seqs=64, max_model_len=256, max_num_batched_tokens=512
    )
    return plan_kv_cache(memory, KvLayout(groups, (10,), drafts), limits)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("tokens", [17, 66, 146])
@pytest.mark.parametrize("windows", WINDOWS)
def test_as_many_sequences_run_as_the_plan_says(
    windows: tuple[int | None, ...], tokens: int, drafts: int
) -> None:
    budget = planned(windows, 90, drafts)
    assert budget.limited_by == "memory"
    sequences = budget.sequences(tokens + drafts)
    scheduler = make_scheduler(
        num_blocks=budget.num_blocks,
        block_size=16,
        max_num_seqs=64,
        max_model_len=256,
        max_num_batched_tokens=512,
        windows=windows,
        num_speculative_tokens=drafts,
        prefix_caching=False,
    )
    model = FakeModel(scheduler)
    for number in range(sequences + 1):
        scheduler.add(make_request(number, tokens, max_tokens=64))
    for _ in range(12):  # as many more tokens as their last blocks hold
        model.step()
    assert scheduler.num_running >= sequences
    if windows == (None,):  # a window that begins with a block takes one less than planned
        assert scheduler.num_running == sequences
    assert scheduler.stats().requests_partial_prefill == 0
    assert scheduler.stats().preemptions_total == 0
