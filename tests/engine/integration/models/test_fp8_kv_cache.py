"""An engine whose KV cache is in fp8: the same tokens however they are computed, and its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from atom.model_ops.attention import Attention, CachedAttention
from atom.model_ops.values import AttentionShape
from atom.sizing import KV_ELEMENTS, ModelFacts, kv_layout
from benchmarks.workloads.shapes import SHAPES
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 8
WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}


INDEXER = {"index_topk": 20, "index_n_heads": 4, "index_head_dim": 24}
# Of mimo_v2 layers keep caches of unlike sizes.
EXTRA = {
    "qwen2": WINDOWED,
    "deepseek32": INDEXER,
    "mimo_v2": {"sliding_window": 24},
    "minimax_m3": {},
}


@pytest.fixture(scope="module", params=[*EXTRA, "qwen3", "deepseek3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers that are alike, windows among full attention, latents, a selection of these,
    and selected spans."""
    extra = EXTRA.get(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return make_tiny_checkpoint(folder, request.param, layers=3, extra=extra)


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, vocab_size, size=n).tolist() for n in (15, 14, 31, 46, 30, 100)]


def driver_of(checkpoint: Path, **options: object) -> CoreDriver:
    return CoreDriver(
        str(checkpoint),
        **{"kv_cache_dtype": "fp8", "max_num_seqs": 8, "max_model_len": 128} | options,
    )


@pytest.mark.sampled(3)
def test_tokens_depend_on_nothing_but_the_prompt(checkpoint: Path) -> None:
    driver = driver_of(checkpoint, backend="torch_ref")
    asked = prompts(driver.vocab_size)
    expected = [driver.generate([one], max_tokens=NEW_TOKENS, ignore_eos=True)[0] for one in asked]
    chunked = driver_of(checkpoint, max_num_batched_tokens=48)
    for _ in range(2):  # the second time with what is cached
        assert chunked.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True) == expected
    assert chunked.scheduler.stats().cached_tokens_total > 0
    facts = driver.config.model.facts
    held = kv_layout(facts, KV_ELEMENTS["fp8"])
    least = sum(held.blocks_of_sequence(len(prompt), 16) for prompt in asked[:-1])
    scarce = driver_of(
        checkpoint,
        max_model_len=64,
        max_num_batched_tokens=48,
        num_kv_blocks=least,
        enable_prefix_caching=False,
    )
    got = scarce.generate(asked[:-1], max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == expected[:-1]
    assert scarce.scheduler.stats().preemptions_total > 0


def test_logits_stay_near_those_of_a_plain_cache(checkpoint: Path) -> None:
    found = []
    for dtype in ("auto", "fp8"):
        driver = driver_of(checkpoint, kv_cache_dtype=dtype)
        driver.generate(prompts(driver.vocab_size), max_tokens=1, ignore_eos=True, logprobs=5)
        found.append([entries[0].logprob for entries in driver.logprobs])
    plain, rounded = (torch.tensor(rows) for rows in found)
    assert not torch.equal(plain, rounded), "the cache was not in fp8"
    assert (plain - rounded).abs().max() < 0.2


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "bf16", "fp8"])
def test_the_cache_takes_the_bytes_that_were_planned(
    checkpoint: Path, kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, int] = {}
    bind = CachedAttention.bind

    def counted(layer: CachedAttention, tensors: Sequence[torch.Tensor], group: int) -> None:
        storages = [tensor.untyped_storage() for tensor in tensors]  # of which layers have parts
        held.update({storage.data_ptr(): storage.nbytes() for storage in storages})
        bind(layer, tensors, group)

    monkeypatch.setattr(CachedAttention, "bind", counted)
    driver = driver_of(checkpoint, kv_cache_dtype=kv_cache_dtype, num_kv_blocks=40)
    assert sum(held.values()) == driver.report.kv_cache_bytes > 0


@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_a_block_takes_the_bytes_that_are_planned(block_size: int) -> None:
    facts = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
    layout = kv_layout(facts, KV_ELEMENTS["fp8"])
    nothing, shape = cast(Any, None), AttentionShape(32, 8, 128, 1.0)
    attention = Attention(shape, nothing, norms=None, ops=nothing)
    tensors = attention.cache_layout(block_size, torch.float8_e4m3fn).tensors
    of_layer = sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
    assert facts.num_layers * of_layer == layout.bytes_per_token * block_size
