"""How many drafts a row carries follows from what steps were timed to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.speculation.time_steps import time_steps
from atom.speculation.draft_lengths import AdaptiveDraftLengths
from atom.speculation.measured_cost import MeasuredCost, Timed
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.offline_engine import OfflineEngine
from tests.support.models.tiny_model import make_tiny_checkpoint

LENGTHS = np.arange(6, dtype=np.float64)
NOTHING = np.zeros(64, dtype=np.int32)  # computed of each slot


def cost_of(*timed: tuple[int, int, float] | tuple[int, int, float, int]) -> MeasuredCost:
    return MeasuredCost([Timed(*each) for each in timed])


def chosen(cost: MeasuredCost, rows: int) -> list[int]:
    lengths = AdaptiveDraftLengths(5, rows, cost)
    for slot in range(rows):
        lengths.enter(slot)
    return lengths.choose(np.arange(rows), NOTHING).tolist()


def test_steps_between_those_timed_and_behind_them_are_on_a_line() -> None:
    cost = cost_of((1, 0, 4.0), (1, 1, 5.0), (9, 0, 6.0), (9, 1, 9.0))
    assert cost.of_steps(5, LENGTHS).tolist() == [5.0, 7.0, 8.25, 9.5, 10.75, 12.0]
    alone = cost_of((4, 0, 2.0), (4, 1, 3.0))
    assert alone.of_steps(8, LENGTHS[:2]).tolist() == [4.0, 6.0]


NEAR = ((1, 0, 4.0), (1, 1, 4.0), (64, 0, 6.0), (64, 1, 6.0))


def test_a_context_that_each_draft_reads_again_costs_as_often() -> None:
    cost = cost_of(*NEAR, (64, 0, 12.4, 1000), (64, 1, 18.8, 1000))
    assert cost.of_steps(64, LENGTHS[:2], context=1000.0) == pytest.approx([12.4, 18.8])
    assert cost.of_steps(32, LENGTHS[:1], context=500.0) == pytest.approx([4 + 62 / 63 + 1.6])
    lengths, slots = AdaptiveDraftLengths(1, 64, cost), np.arange(64)
    for context, drafts in ((0, 1), (5000, 0)):  # two tokens cost as much as two steps there
        for slot in slots:
            lengths.enter(slot)
        computed = np.full(64, context, np.int32)
        tried = [lengths.choose(slots, computed) for _ in range(2)]  # the first one all the same
        assert set(tried[-1].tolist()) == {drafts}


def test_a_context_that_is_read_once_for_all_drafts_costs_no_more_with_them() -> None:
    cost = cost_of(*NEAR, (64, 0, 12.4, 1000), (64, 1, 12.3, 1000))
    assert cost.of_steps(64, LENGTHS, context=1000.0)[:2] == pytest.approx([12.4, 12.4])
    assert cost.of_steps(64, LENGTHS)[0] == 6.0
    assert cost_of(*NEAR).of_steps(64, LENGTHS[:1], context=1000.0) == [6.0]


def test_drafts_made_one_after_the_other_cost_what_each_took() -> None:
    cost = cost_of((1, 0, 4.0), (1, 1, 5.0), (1, 5, 11.0), (8, 1, 5.0))
    assert cost.of_steps(1, LENGTHS).tolist() == [4.0, 5.0, 6.5, 8.0, 9.5, 11.0]


def test_a_step_of_more_is_never_taken_to_be_faster() -> None:
    cost = cost_of((1, 0, 4.0), (1, 1, 5.0), (4, 0, 3.9), (4, 1, 4.9))
    assert cost.of_steps(4, LENGTHS[:2]).tolist() == [4.0, 5.0]


def test_dear_launches_leave_drafts_out() -> None:
    cheap = cost_of((1, 0, 4.0), (1, 1, 4.1), (64, 0, 7.0), (64, 1, 10.0))
    dear = cost_of((1, 0, 4.0), (1, 1, 40.0), (64, 0, 7.0), (64, 1, 50.0))
    assert chosen(cheap, 1) == [5]
    assert chosen(dear, 1) == [0]
    assert min(chosen(cheap, 16)) >= 1


def test_steps_are_timed_with_and_without_drafts(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", seed=5)
    engine = OfflineEngine(
        str(folder), speculative=SpeculativeConfig(num_tokens=3), max_model_len=512, max_num_seqs=5,
        num_kv_blocks=100, max_num_batched_tokens=64,
    )  # fmt: skip
    runner: Any = engine.executor.runner  # type: ignore[attr-defined]
    seconds = iter(range(1000))
    with torch.inference_mode():
        timed = time_steps(
            runner.steps, engine.config, CacheShape(100, 16, 1), 16, lambda: float(next(seconds))
        )
    engine.close()
    far = 100 * 16 // 4 - 22  # of as many rows as the cache holds, but for where they may come
    assert [(step.rows, step.drafts, step.context) for step in timed] == [
        (1, 0, 0), (1, 1, 0), (1, 3, 0), (4, 0, 0), (4, 1, 0), (4, 3, 0), (5, 0, 0), (5, 1, 0),
        (4, 0, far), (4, 3, far),
    ]  # fmt: skip
    assert (runner.steps.slots.device.num_computed[:4] > far).all()
    assert {step.seconds for step in timed} == {0.25}
    assert runner.steps._unknown == 0
