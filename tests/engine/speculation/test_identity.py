"""Speculation changes no token: seeded requests over every sampling control, against no drafts.

Whatever drafts there are, however many a row carries, in whichever steps: each request's tokens,
end and log-probabilities are those of an engine that drafts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.sizing.cache_groups import MAX_GROUPS
from atom.speculative_config import SpeculativeConfig, SuffixOptions
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.speculated_answers import (
    AMPLE_BLOCKS,
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    SCARCE_BLOCKS,
    PlayedEngine,
    Setting,
    cache_masks,
    differing,
    some_requests,
)
from tests.support.models.draft_checkpoints import (
    add_mimo_mtp_layers,
    add_mtp_layer,
    make_draft_model,
    make_eagle3,
)
from tests.support.models.tiny_model import make_tiny_checkpoint

MOST_DRAFTS = 7
SETTINGS = {
    "one": Setting(drafts=1),
    "three": Setting(drafts=3),
    "seven-behind": Setting(drafts=7, depth=1),
    "prompts-first": Setting(drafts=4, depth=1, policy="prefill_first"),
    "chunks": Setting(drafts=3, depth=1, budget=24, threshold=7),
    "preempted": Setting(drafts=5, num_blocks=SCARCE_BLOCKS),
    "preempted-behind": Setting(drafts=5, depth=1, num_blocks=SCARCE_BLOCKS),
    "no-prefix-cache": Setting(drafts=2, depth=1, prefix_caching=False),
    "aborts": Setting(drafts=6, depth=1, aborts=True, num_blocks=SCARCE_BLOCKS),
    "tight-budget": Setting(drafts=7, budget=9),
    "adaptive": Setting(drafts=7, adaptive=True),
    "adaptive-behind": Setting(drafts=7, depth=1, adaptive=True, num_blocks=SCARCE_BLOCKS),
}


# Of layers that draft, in the short tests: rows that wait, chunks, and blocks that are short.
OF_LAYERS = ("seven-behind", "chunks", "preempted-behind", "adaptive")


@pytest.fixture(scope="module", params=["pairs", "any-match"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CoreDriver, CoreDriver]]:
    """One that drafts, and one that does not, of the same weights."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=5)
    fewest = 1 if request.param == "any-match" else 2
    speculative = SpeculativeConfig(
        num_tokens=MOST_DRAFTS, fewest_matched=fewest, most_matched=fewest + 2
    )
    yield from _engines(folder, speculative)


@pytest.fixture(scope="module")
def suffix_engines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[CoreDriver, CoreDriver]]:
    """One whose host foretells the drafts, and one that drafts nothing."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=5)
    yield from _engines(folder, SpeculativeConfig(method="suffix", num_tokens=MOST_DRAFTS))


@pytest.fixture(
    scope="module",
    params=["deepseek3", "glm4_moe", "mimo_v2", "eagle3", "draft_model"],
)
def layer_engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CoreDriver, CoreDriver]]:
    """One that drafts with a layer or a model, and one that does not, of the same weights."""
    folder, draft = tmp_path_factory.mktemp(request.param), None
    if request.param == "eagle3":
        make_tiny_checkpoint(folder, "llama", layers=7, seed=5)
        draft = tmp_path_factory.mktemp("draft")
        make_eagle3(draft, folder, draft_vocabulary=200, layer="layers.0")
    elif request.param == "draft_model":
        make_tiny_checkpoint(folder, "qwen3", layers=3, seed=5)
        draft = make_draft_model(tmp_path_factory.mktemp("draft"), folder)
    elif request.param == "mimo_v2":
        made = {"layers": 4, "extra": {"sliding_window": 24}}
        make_tiny_checkpoint(folder, request.param, seed=5, **made)
        add_mimo_mtp_layers(folder)
    else:
        make_tiny_checkpoint(folder, request.param, seed=5)
        add_mtp_layer(folder)
    speculative = SpeculativeConfig(
        method="mtp" if draft is None else request.param,
        draft_model=None if draft is None else str(draft),
        num_tokens=MOST_DRAFTS,
    )
    yield from _engines(folder, speculative)


def _engines(
    folder: Path, speculative: SpeculativeConfig
) -> Iterator[tuple[CoreDriver, CoreDriver]]:
    threads = torch.get_num_threads()
    drafting, plain = (
        CoreDriver(
            str(folder), max_model_len=MAX_MODEL_LEN, max_num_seqs=8, max_num_batched_tokens=256,
            num_kv_blocks=AMPLE_BLOCKS * MAX_GROUPS, block_size=BLOCK_SIZE, speculative=asked,
        )
        for asked in (speculative, None)
    )  # fmt: skip
    torch.set_num_threads(1)  # the matrices are too small to be worth two
    yield drafting, plain
    torch.set_num_threads(threads)


def play_both(
    engines: tuple[CoreDriver, CoreDriver], setting: Setting, seed: int, count: int
) -> None:
    drafting, plain = engines
    eos = drafting.config.model.eos_token_ids
    requests = some_requests(seed, count, drafting.vocab_size)
    masks, drafting_masks = (cache_masks(each.scheduler) for each in (plain, drafting))
    expected = PlayedEngine(plain.executor, Setting(), eos, masks=masks).play(requests)
    played = PlayedEngine(drafting.executor, setting, eos, masks=drafting_masks)
    answers = played.play(requests)
    assert differing(answers, expected) == []
    stats = played.stats
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total, "drafts are to hold and fail"
    assert played.scheduler.blocks.pool.num_referenced == 0


@pytest.mark.sampled(4)
@pytest.mark.singles
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_without_drafts(engines: tuple[CoreDriver, CoreDriver], name: str) -> None:
    play_both(engines, SETTINGS[name], seed=list(SETTINGS).index(name), count=9)


@pytest.mark.sampled(5)
@pytest.mark.singles
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_without_drafts_that_the_host_foretells(
    suffix_engines: tuple[CoreDriver, CoreDriver], name: str
) -> None:
    options = SuffixOptions(max_spec_factor=4.0, min_token_prob=0.01, max_cached_requests=5)
    setting = replace(SETTINGS[name], suffix=options)
    play_both(suffix_engines, setting, seed=list(SETTINGS).index(name), count=9)


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("name", OF_LAYERS)
def test_tokens_are_those_without_a_layer_that_drafts(
    layer_engines: tuple[CoreDriver, CoreDriver], name: str
) -> None:
    play_both(layer_engines, SETTINGS[name], seed=list(SETTINGS).index(name), count=9)


@pytest.mark.slow
def test_ten_thousand_requests_are_answered_as_without_drafts(
    engines: tuple[CoreDriver, CoreDriver],
) -> None:
    """5,000 for each of the two engines that draft."""
    for number in range(5_000 // 50):
        setting = list(SETTINGS.values())[number % len(SETTINGS)]
        play_both(engines, setting, seed=1_000 + number, count=50)


@pytest.mark.slow
def test_thousands_of_requests_are_answered_as_without_layers_that_draft(
    layer_engines: tuple[CoreDriver, CoreDriver],
) -> None:
    """1,800 for each of the five engines that draft, in every setting."""
    for number in range(1_800 // 50):
        setting = list(SETTINGS.values())[number % len(SETTINGS)]
        play_both(layer_engines, setting, seed=2_000 + number, count=50)
