"""Blocks of a single token: every token crosses a block boundary, and every block is shareable."""

from __future__ import annotations

import pytest

from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline
from tests.support.engine_core.builders_engine import make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel

PROMPTS = (5, 9, 14, 3)
TOKENS = 10


def token_of(request: int, position: int) -> int:
    return 100 + request * 31 + position  # never the end token


def pipeline_over(scheduler: Scheduler, depth: int) -> StepPipeline:
    num_blocks = scheduler.blocks.pool.num_blocks
    model = PagedModel(1, num_blocks, scheduled_rows=scheduler.rows, draw=token_of)
    return StepPipeline(scheduler, model, depth=depth)


def serve(
    scheduler: Scheduler, pipeline: StepPipeline, requests: dict[int, int]
) -> dict[int, list[int]]:
    for request, length in requests.items():
        scheduler.add(make_request(request, length, max_tokens=TOKENS))
    tokens: dict[int, list[int]] = {request: [] for request in requests}
    for step in range(2000):
        if not pipeline.has_work():
            break
        result = pipeline.step(float(step))
        if result is not None:
            for request, token in zip(result.request_ids, result.token_ids, strict=True):
                tokens[int(request)].append(int(token))
        scheduler.blocks.pool.check_integrity()
    assert not pipeline.has_work(), "no progress"
    assert scheduler.blocks.pool.num_referenced == 0
    return tokens


@pytest.mark.parametrize("num_blocks", [128, 26], ids=["ample", "scarce"])
@pytest.mark.parametrize("depth", [0, 1], ids=["at-once", "deferred"])
@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
def test_requests_are_answered_and_their_blocks_come_back(
    policy: str, depth: int, num_blocks: int
) -> None:
    scheduler = make_scheduler(
        block_size=1, num_blocks=num_blocks, max_model_len=26, policy=policy, prefix_caching=False
    )
    tokens = serve(scheduler, pipeline_over(scheduler, depth), dict(enumerate(PROMPTS)))
    assert tokens == {
        request: [token_of(request, length + i) for i in range(TOKENS)]
        for request, length in enumerate(PROMPTS)
    }
    assert (scheduler.stats().preemptions_total > 0) == (num_blocks == 26)


def test_all_of_a_prompt_but_its_last_token_is_shared() -> None:
    scheduler = make_scheduler(block_size=1)
    pipeline = pipeline_over(scheduler, 0)
    serve(scheduler, pipeline, {0: 9})
    assert scheduler.stats().cached_tokens_total == 0
    serve(scheduler, pipeline, {0: 9})
    assert scheduler.stats().cached_tokens_total == 8
