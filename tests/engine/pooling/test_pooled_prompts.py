"""Prompts become vectors through the engine's own scheduler, and transformers says which ones.

Chunks, prefix cache, preemption, ranks of one model and aborts change no number beyond rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atom.model_engine.runner.pooling_step_runner import score_tokens
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.pooling_checkpoint import (
    expected_embedding,
    expected_score,
    make_embedder,
    make_reranker,
)
from tests.support.ranks.rank_group import RankGroup

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 80, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 256,
}  # fmt: skip
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
PROMPTS = [
    [int(token) for token in np.random.default_rng(length).integers(3, 200, length)]
    for length in (1, 2, 15, 16, 17, 100, 256)
]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def expected(embedder: Path) -> list[NDArray[np.float32]]:
    return [expected_embedding(embedder, prompt) for prompt in PROMPTS]


def pool(core: CoreDriver, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
    """Each prompt's vector; every other promise of a step is checked on the way."""
    params = SamplingParams(max_tokens=1, temperature=0.0)
    numbers = [core.add(prompt, params) for prompt in prompts]
    found: dict[int, NDArray[np.float32]] = {}
    while core.has_work():
        result = core.step()
        if result is None:
            continue
        assert not len(result.token_ids), "a pooled prompt has no tokens"
        assert all((row.reason, row.detail) == ("stop", "pooled") for row in result.finished)
        if result.pooled is not None:
            found |= zip(result.pooled.request_ids.tolist(), result.pooled.vectors, strict=True)
        core.scheduler.blocks.pool.check_integrity()
    assert core.scheduler.blocks.pool.num_referenced == 0
    assert core.scheduler.stats().generation_tokens_total == 0
    return [found[number] for number in numbers]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 512},
        {"max_num_batched_tokens": 8, "block_size": 1, "num_kv_blocks": 1200},
        {"scheduling_policy": "prefill_first"},
        {"long_prefill_token_threshold": 7},
        {"enable_prefix_caching": False},
        {"backend": "torch_ref"},
        {"depth": 1},
    ],
    ids=str,
)
def test_vectors_are_transformers(
    embedder: Path, expected: list[NDArray[np.float32]], options: dict[str, Any]
) -> None:
    core = CoreDriver(str(embedder), **{**OPTIONS, **options})
    for vector, wanted in zip(pool(core, PROMPTS), expected, strict=True):
        np.testing.assert_allclose(vector, wanted, **CLOSE)
        assert abs(np.linalg.norm(vector) - 1) < 1e-5


def test_a_cached_prefix_is_not_computed_again_and_changes_nothing(
    embedder: Path, expected: list[NDArray[np.float32]]
) -> None:
    core = CoreDriver(str(embedder), **OPTIONS)
    pool(core, PROMPTS)
    before = core.scheduler.stats().cached_tokens_total
    for vector, wanted in zip(pool(core, PROMPTS), expected, strict=True):
        np.testing.assert_allclose(vector, wanted, **CLOSE)
    assert core.scheduler.stats().cached_tokens_total - before >= 240


def test_a_prompt_that_had_to_make_room_is_computed_again(
    embedder: Path, expected: list[NDArray[np.float32]]
) -> None:
    """Prompts take all their blocks at once, so that none makes room by itself."""
    core = CoreDriver(str(embedder), **OPTIONS)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    number = core.add(PROMPTS[-1], params)
    core.step()  # the first of its chunks
    core.scheduler._preempt_one()
    found = {}
    while core.has_work():
        result = core.step()
        if result is not None and result.pooled is not None:
            found |= zip(result.pooled.request_ids.tolist(), result.pooled.vectors, strict=True)
    np.testing.assert_allclose(found[number], expected[-1], **CLOSE)
    assert core.scheduler.stats().preemptions_total == 1


def test_an_aborted_prompt_gives_back_its_blocks(embedder: Path) -> None:
    core = CoreDriver(str(embedder), **OPTIONS)
    number = core.add(PROMPTS[-1], SamplingParams(max_tokens=1, temperature=0.0))
    core.step()
    assert core.scheduler.blocks.pool.num_referenced > 0
    (row,) = core.pipeline.abort([number])
    assert (row.request_id, row.reason) == (number, "abort")
    assert core.scheduler.blocks.pool.num_referenced == 0


def test_a_score_is_the_share_of_yes_between_yes_and_no(tmp_path: Path) -> None:
    folder = make_reranker(tmp_path / "reranker")
    core = CoreDriver(str(folder), convert="classify", **OPTIONS)
    no, yes = score_tokens(core.config.model)
    for prompt, vector in zip(PROMPTS, pool(core, PROMPTS), strict=True):
        assert vector.shape == (1,)
        np.testing.assert_allclose(vector[0], expected_score(folder, prompt, no, yes), **CLOSE)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    group = RankGroup(2)
    yield group
    group.close()


@pytest.mark.parametrize("convert", ["embed", "classify"])
def test_two_ranks_of_one_model_say_what_one_says(
    pair: RankGroup, tmp_path: Path, convert: str
) -> None:
    folder = make_reranker(tmp_path / "model")
    options = {**OPTIONS, "convert": convert}
    alone = pool(CoreDriver(str(folder), **options), PROMPTS)
    try:
        for vector, wanted in zip(
            pool(pair.driver(str(folder), **options), PROMPTS), alone, strict=True
        ):
            np.testing.assert_allclose(vector, wanted, **CLOSE)
    finally:
        pair.let_go()
