"""States go back to the last token that holds: drafts change no answer of models that keep states.

Every kind of state, in steps with chunks, cached prefixes and rows that are preempted, eagerly and
by graphs; and what a backend leaves in a state of a row whose last tokens are drafts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.request import Request
from atom.model_engine.wire.core_stats import StatsBody
from atom.speculative_config import SpeculativeConfig
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.engine.speculation.test_identity import SETTINGS
from tests.engine.speculation.test_verify_graphs import replaying
from tests.support.engine_core.builders_engine import make_request
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.speculated_answers import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    SCARCE_BLOCKS,
    Answer,
    PlayedEngine,
    Setting,
    differing,
)
from tests.support.engine_core.speculated_answers import some_requests as sampled_requests
from tests.support.models.draft_checkpoints import WEIGHTS, add_qwen_mtp_layer, write_weights
from tests.support.models.hybrid_checkpoints import HYBRID
from tests.support.models.tiny_model import make_tiny_checkpoint

MOST = 3
DRAFTS = SpeculativeConfig(num_tokens=MOST, fewest_matched=1, most_matched=3, adaptive=False)
OPTIONS: dict[str, Any] = {
    "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 64, "num_kv_blocks": 64,
    "block_size": BLOCK_SIZE, "max_num_seqs": 8,
}  # fmt: skip
# Of each kind of state: by key head, by part, Kimi's, Mamba-2's, and a convolution's tail alone.
KINDS = ("qwen3-next-odd", "qwen3.5-moe", "kimi-linear-odd", "granite-hybrid-dense", "lfm2-odd")
TOGETHER = Setting(drafts=MOST, depth=1, budget=24, threshold=17, num_blocks=SCARCE_BLOCKS)


def some_requests(count: int, max_tokens: int, first: int = 0) -> list[Request]:
    """Of few tokens, so that drafts hold as well as fail; prompts begin alike."""
    return [
        make_request(
            number, [5, 7, 9, 7, 9, 11] * 6 + [20 + number, 7, 9, 7], max_tokens=max_tokens,
            seed=number, temperature=number / 4, allowed_token_ids=(7, 9, 11), ignore_eos=True,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def played(
    engine: CoreDriver, setting: Setting, requests: list[Request]
) -> tuple[list[Answer], StatsBody]:
    report, eos = engine.report, engine.config.model.eos_token_ids
    checkpoints = StateCheckpoints(report.num_checkpoints, report.checkpoint_tokens // BLOCK_SIZE)
    player = PlayedEngine(engine.executor, setting, eos, checkpoints)
    return player.play(requests), player.stats


def expected_of(folder: Path, requests: list[Request], **options: Any) -> list[Answer]:
    plain = CoreDriver(str(folder), **OPTIONS, **options)
    return played(plain, Setting(prefix_caching=False), requests)[0]


def made(folder: Path, kind: str) -> Path:
    return make_tiny_checkpoint(folder, **CHECKPOINTS[kind], seed=5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_no_answer(tmp_path: Path, kind: str) -> None:
    folder, requests = made(tmp_path, kind), some_requests(3, max_tokens=12)
    drafting = CoreDriver(str(folder), speculative=DRAFTS, **OPTIONS)
    answers, stats = played(drafting, Setting(drafts=MOST), requests)
    assert differing(answers, expected_of(folder, requests)) == []
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total


def test_chunks_cached_prefixes_and_preempted_rows_go_on_from_what_held(tmp_path: Path) -> None:
    folder, requests = made(tmp_path, "nemotron-h-odd"), some_requests(4, max_tokens=50)
    drafting = CoreDriver(str(folder), speculative=DRAFTS, **OPTIONS)
    answers, stats = played(drafting, TOGETHER, requests)
    assert differing(answers, expected_of(folder, requests)) == []
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total
    assert stats.cached_tokens_total > 0
    assert stats.preemptions_total > 0


def test_a_layer_of_the_checkpoint_drafts(tmp_path: Path) -> None:
    folder = made(tmp_path, "qwen3.5-moe")
    add_qwen_mtp_layer(folder)
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"][[7, 9, 11]] *= 8.0  # so that the layer guesses these, too
    write_weights(folder, tensors)
    requests = some_requests(3, max_tokens=12)
    asked = SpeculativeConfig(method="mtp", num_tokens=MOST, adaptive=False)
    drafting = CoreDriver(str(folder), speculative=asked, **OPTIONS)
    answers, stats = played(drafting, Setting(drafts=MOST, budget=24), requests)
    assert differing(answers, expected_of(folder, requests)) == []
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", HYBRID)
def test_every_model_and_setting_answers_as_without_drafts(
    tmp_path: Path, kind: str, name: str
) -> None:
    folder = made(tmp_path, kind)
    sampled = sampled_requests(list(SETTINGS).index(name), 9, 290)
    requests = [*sampled, *some_requests(6, max_tokens=50, first=9)]
    drafting = CoreDriver(str(folder), speculative=replace(DRAFTS, num_tokens=7), **OPTIONS)
    answers, stats = played(drafting, SETTINGS[name], requests)
    assert differing(answers, expected_of(folder, requests)) == []
    assert stats.accepted_tokens_total > 0


def test_graphs_take_in_what_held(tmp_path: Path) -> None:
    folder, requests = made(tmp_path, "qwen3.5-moe"), some_requests(2, max_tokens=16)
    drafting, pool = replaying(folder, DRAFTS, max_num_seqs=2)
    answers, stats = played(drafting, Setting(drafts=MOST, depth=1, adaptive=True), requests)
    assert differing(answers, expected_of(folder, requests, backend="torch_ref")) == []
    assert stats.accepted_tokens_total > 0
    assert pool.replays["VerifyGraphs._forward"] > 0
    assert pool.replays["DecodeGraphs._forward"] > 0
