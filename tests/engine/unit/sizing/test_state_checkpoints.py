"""How far apart checkpoints of states are, and how many of them a device holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atom.sizing import CacheGroup, DeviceMemory, DoesNotFitError, KvLayout, RunLimits
from atom.sizing.kv_budget import checkpoint_tokens, plan_kv_cache, running_sequences
from atom.sizing.mask_rule import sliding_window

# 10 bytes of a token, 1,000 of a state: as many as 100 tokens, a quarter of which is two blocks.
LAYOUT = KvLayout(token_bytes=(6, 4), state_bytes=1_000)
LIMITS = RunLimits(
    block_size=16, max_num_seqs=4, max_model_len=64, max_num_batched_tokens=64, prefix_caching=True
)


def memory(total_bytes: int) -> DeviceMemory:
    return DeviceMemory(
        total_bytes=total_bytes,
        utilization=1.0,
        weights_bytes=1_000,
        activation_bytes=0,
        overhead_bytes=0,
    )


def test_the_interval_is_whole_blocks() -> None:
    assert checkpoint_tokens(LAYOUT, 16) == 32
    assert checkpoint_tokens(LAYOUT, 1) == 25
    assert checkpoint_tokens(replace(LAYOUT, state_bytes=0), 16) == 0


def test_windows_beside_states_count_if_nothing_else_is_kept() -> None:
    window = CacheGroup((), sliding_window(20))
    assert checkpoint_tokens(replace(LAYOUT, groups=(CacheGroup(), window)), 16) == 32
    assert checkpoint_tokens(replace(LAYOUT, groups=(window, window)), 1) == 13
    alone = CacheGroup((), sliding_window(1))
    assert checkpoint_tokens(replace(LAYOUT, groups=(CacheGroup(), alone)), 16) == 0


def test_running_states_come_before_blocks_and_checkpoints_are_a_fifth_of_the_rest() -> None:
    budget = plan_kv_cache(memory(16_000), LAYOUT, LIMITS)
    left = 16_000 - 1_000 - 5 * 1_000
    assert budget.num_checkpoints == left // 5 // 1_000 == 2
    assert budget.num_blocks == (left - 2_000) // 160 or budget.limited_by == "max_num_seqs"


def test_states_of_running_sequences_take_half_of_what_is_left() -> None:
    asked = replace(LIMITS, max_num_seqs=512)
    assert running_sequences(memory(16_000), LAYOUT, asked) == 15_000 // 2 // 1_000 - 1
    assert running_sequences(memory(10**7), LAYOUT, asked) == 512
    assert running_sequences(memory(1_500), LAYOUT, asked) == 1  # the plan says what is missing
    assert running_sequences(memory(2_000), replace(LAYOUT, state_bytes=0), asked) == 512


def test_no_more_checkpoints_than_full_sequences_have() -> None:
    assert plan_kv_cache(memory(10**6), LAYOUT, LIMITS).num_checkpoints == 4 * 2


def test_none_without_a_prefix_cache() -> None:
    off = replace(LIMITS, prefix_caching=False)
    assert plan_kv_cache(memory(10**6), LAYOUT, off).num_checkpoints == 0


def test_a_sequence_of_the_full_length_comes_first() -> None:
    budget = plan_kv_cache(memory(1_000 + 5_000 + 1_500), LAYOUT, LIMITS)
    assert budget.num_checkpoints == 0
    assert budget.num_blocks >= 4


def test_states_that_leave_no_room_are_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"states of all sequences.*fewer sequences"):
        plan_kv_cache(memory(5_900), LAYOUT, LIMITS)
