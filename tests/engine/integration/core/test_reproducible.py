"""Reproducible answers on the CPU: whatever else is computed, and however, no bit differs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from atom.errors import ConfigError
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.reproducible_requests import (
    MEMORIES,
    OPTIONS,
    WAYS,
    alone,
    answers,
    differing,
    reproducible_requests,
)
from tests.support.models.tiny_model import make_tiny_checkpoint

# Inner sizes over the 256 inputs that a product's kernel takes at a time, and no whole tiles.
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"architecture": "qwen3", "intermediate": 700},
    "windows": {
        "architecture": "qwen2", "layers": 3,
        "extra": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    },
    "experts": {
        "architecture": "qwen2_moe", "layers": 1,
        "extra": {
            "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 40,
        },
    },
    "latent attention": {
        "architecture": "deepseek3",
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
            "moe_intermediate_size": 40, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
        },
    },
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["dense", "latent attention"])
def test_no_bit_of_an_answer_depends_on_other_requests(model: str, tmp_path: Path) -> None:
    _compare(model, tmp_path, requests=8, tokens=8)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_no_bit_of_many_answers_depends_on_other_requests(model: str, tmp_path: Path) -> None:
    _compare(model, tmp_path, requests=250, tokens=24)


def _compare(model: str, folder: Path, *, requests: int, tokens: int) -> None:
    path = str(make_tiny_checkpoint(folder, **MODELS[model]))
    asked = reproducible_requests(requests, tokens)
    expected = alone(CoreDriver(path, **OPTIONS, threads=1), asked)
    for way, memory in product(WAYS, MEMORIES):
        driver = CoreDriver(path, **{**OPTIONS, **WAYS[way], **MEMORIES[memory]}, threads=2)
        found = answers(driver, asked)
        assert (way, memory, *differing(found, expected)) == (way, memory, 0, 0)
        stats = driver.scheduler.stats()
        assert (way, stats.preemptions_total > 0) == (way, memory == "little memory")
        assert stats.accepted_tokens_total > 0 or way != "drafts"
        if way != "no prefix cache":  # the second time behind a warm cache
            found = answers(driver, asked[::-1])[::-1]
            assert (way, memory, *differing(found, expected)) == (way, memory, 0, 0)
            assert driver.scheduler.stats().cached_tokens_total > 0


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"architecture": "gemma2"}, "paged_attention: its attention has no soft cap"),
        ({"architecture": "gpt_oss"}, "paged_attention: its attention has no sinks"),
    ],
)
def test_what_has_no_kernel_of_fixed_order_is_refused(
    made: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = str(make_tiny_checkpoint(tmp_path, layers=1, **made))
    with pytest.raises(ConfigError, match=f"reproducible: .*{reason}.*drop --reproducible"):
        CoreDriver(path, **OPTIONS)
