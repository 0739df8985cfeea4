"""The sizes that steps with prompts are recorded for, and which of them a step runs in."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.cuda_graphs.prompt_buckets import (
    PromptBucket,
    host_bound_tokens,
    prompt_buckets,
)
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.warm_up import computing_ahead, decode_batch
from atom.sizing.model_facts import ModelFacts
from benchmarks.workloads.shapes import SHAPES

CACHE = CacheShape(num_blocks=64, block_size=16, num_groups=1)


def step(decodes: int, chunk: int) -> ScheduledBatch:
    return decode_batch([5] * decodes, CACHE, chunk=chunk)


def chosen(buckets: tuple[PromptBucket, ...], batch: ScheduledBatch) -> PromptBucket | None:
    return next((bucket for bucket in buckets if bucket.holds(batch)), None)


@pytest.mark.parametrize(
    ("decodes", "chunk", "expected"),
    [
        (0, 1, (64, 0)),
        (0, 64, (64, 0)),
        (0, 65, (128, 0)),
        (1, 48, (64, 16)),
        (1, 49, (128, 16)),
        (17, 512, (640, 64)),
        (65, 200, (512, 256)),
        (200, 1792, (2048, 256)),
    ],
)
def test_a_step_runs_in_the_smallest_that_holds_it(
    decodes: int, chunk: int, expected: tuple[int, int]
) -> None:
    found = chosen(prompt_buckets(256, 16384, 1 << 20), step(decodes, chunk))
    assert found is not None
    assert (found.tokens, found.decodes) == expected


def test_a_step_that_no_bucket_holds_has_none() -> None:
    buckets = prompt_buckets(256, 16384, 1 << 20)
    assert chosen(buckets, step(0, 2049)) is None
    assert chosen(buckets, step(1, 2048)) is None
    many = step(0, 1)
    rows = {
        name: np.repeat(getattr(many, name), 65)
        for name in ("slots", "req_ids", "num_computed_tokens", "num_scheduled_tokens", "samples")
    }
    assert chosen(buckets, replace(many, **rows)) is None
    assert chosen(buckets, computing_ahead(step(2, 30), 3)) is None


@pytest.mark.parametrize("rows", [2, 7, 20, 300])
@pytest.mark.parametrize("budget", [1, 30, 64, 200, 512])
def test_every_step_of_a_small_budget_has_one(rows: int, budget: int) -> None:
    """Sizes go up to one that holds any step, with as many rows as there may be."""
    buckets = prompt_buckets(rows, budget, 1 << 20)
    for decodes in range(min(rows, budget, 256)):
        found = chosen(buckets, step(decodes, budget - decodes))
        assert found is not None, decodes
        assert found.rows >= min(rows, 64, budget) or found.rows >= found.tokens - found.decodes


def test_a_model_of_more_work_a_layer_has_fewer() -> None:
    sizes = {}
    for name in ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b"):
        facts = ModelFacts.from_hf_config(SHAPES[name])
        bound = host_bound_tokens(facts, 1)
        sizes[name] = max(bucket.tokens for bucket in prompt_buckets(256, 16384, bound))
    assert sizes == {"qwen3-0.6b": 2048, "qwen3-8b": 512, "qwen3-30b-a3b": 2048}
    two = host_bound_tokens(ModelFacts.from_hf_config(SHAPES["qwen3-8b"]), 2)
    assert max(bucket.tokens for bucket in prompt_buckets(256, 16384, two)) == 1024


def test_buckets_are_tried_smallest_first() -> None:
    buckets = prompt_buckets(256, 16384, 1 << 20)
    assert len(buckets) < 40, "each is captured at start"
    for smaller, larger in itertools.pairwise(buckets):
        assert (smaller.tokens, smaller.decodes) < (larger.tokens, larger.decodes)
