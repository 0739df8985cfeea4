"""Groups of ranks as processes, under requests, drains and kills at random moments: answers are one
rank's, whoever is cut off gets an error by the rank's name, and nothing is left behind.

The many interleavings are tests/engine/unit/model_engine/test_lockstep_schedules.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.config import Config, EngineOptions, build_config
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.group_lives import AnswerBook, GroupLife

pytestmark = pytest.mark.slow

CACHE = {"num_kv_blocks": 60, "max_num_seqs": 4}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GROUPS: dict[str, dict[str, Any]] = {
    "experts shared by 2": {
        "data_parallel_size": 2, "enable_dp_attention": True, "enable_expert_parallel": True,
    },
    "experts shared by 3": {
        "data_parallel_size": 3, "enable_dp_attention": True, "enable_expert_parallel": True,
    },
    "a copy divided over 2": {"tensor_parallel_size": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    extra = {"vocab_size": 384, **EXPERTS}
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3_moe", extra=extra)


@pytest.fixture(scope="module")
def book(model: Path) -> AnswerBook:
    return AnswerBook(str(model), **CACHE)


def _config(model: Path, group: str) -> Config:
    options = EngineOptions.of(model=str(model), device="cpu", **CACHE, **GROUPS[group])  # type: ignore[arg-type]
    return build_config(options)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("group", GROUPS)
async def test_a_group_that_is_drained(
    group: str, seed: int, model: Path, book: AnswerBook
) -> None:
    await GroupLife(_config(model, group), book, seed).drained()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("group", GROUPS)
async def test_a_group_whose_process_is_killed(
    group: str, seed: int, model: Path, book: AnswerBook
) -> None:
    await GroupLife(_config(model, group), book, seed).killed()
