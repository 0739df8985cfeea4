"""Steps that replay graphs are those that run eagerly, whoever drafts.

Graphs are played by functions here, since only a GPU records any: a replay computes anew what was
captured, into the tensors of its capture. So what is tested is that a step gives its graphs its
slots, drafts and blocks and nothing else, and takes from them what its rows get.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.speculative_config import SpeculativeConfig, SuffixOptions
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.speculated_answers import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    PlayedEngine,
    Setting,
    cache_masks,
    differing,
    some_requests,
)
from tests.support.kernels.played_graphs import PlayedPool
from tests.support.models.draft_checkpoints import (
    add_mimo_mtp_layers,
    add_mtp_layer,
    make_draft_model,
    make_eagle3,
)
from tests.support.models.tiny_model import make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 256, "num_kv_blocks": 512,
    "block_size": BLOCK_SIZE, "max_num_seqs": 8, "backend": "torch_ref",
}  # fmt: skip
MOST = 3


def replaying(
    folder: Path, speculative: SpeculativeConfig, **options: Any
) -> tuple[CoreDriver, PlayedPool]:
    """An engine whose decode steps replay played graphs. The reference computes no padding, so each
    number of rows and tokens has a bucket, and is captured with as many in the entry."""
    driver = CoreDriver(str(folder), speculative=speculative, **{**OPTIONS, **options})
    steps: Any = driver.executor.runner.steps  # type: ignore[attr-defined]
    pool = PlayedPool(lambda: steps.slots.device.num_computed.fill_(9))
    every = "atom.model_engine.runner"
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        for sizes in (
            "step_runner.bucket_sizes",
            "speculation.speculative_step_runner.token_sizes",
        ):
            patch.setattr(f"{every}.{sizes}", lambda most: list(range(1, most + 1)))
        steps.graphs = steps.build_graphs(pool)
        said = steps.graphs._host_ring.ring.said
        said[:, 0], said[:, 4] = torch.arange(said.shape[2]), MOST
        steps.graphs.capture(lambda share: None)
    return driver, pool


def check(folder: Path, speculative: SpeculativeConfig, setting: Setting) -> PlayedPool:
    plain = CoreDriver(str(folder), **OPTIONS)
    drafting, pool = replaying(folder, speculative)
    eos = plain.config.model.eos_token_ids
    requests = some_requests(77, 16, plain.vocab_size)
    masks, drafting_masks = (cache_masks(each.scheduler) for each in (plain, drafting))
    expected = PlayedEngine(plain.executor, Setting(), eos, masks=masks).play(requests)
    played = PlayedEngine(drafting.executor, setting, eos, masks=drafting_masks)
    assert differing(played.play(requests), expected) == []
    assert 0 < played.stats.accepted_tokens_total < played.stats.draft_tokens_total
    return pool


# Rows that always carry drafts, and a host a step behind with rows that carry them at times.
SETTINGS = {
    "always": Setting(drafts=MOST, num_blocks=11),
    "at-times": Setting(drafts=MOST, num_blocks=11, depth=1, adaptive=True),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_by_look_up_are_those_of_eager_steps(tmp_path: Path, name: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", seed=5)
    asked = SpeculativeConfig(num_tokens=MOST, fewest_matched=1, most_matched=3)
    replays = check(folder, asked, SETTINGS[name]).replays
    # A step is its entry and drafts, the layers, and the draws, which some rows have eagerly.
    assert replays["VerifyGraphs._begin"] == replays["VerifyGraphs._forward"] > 20
    assert 5 < replays["VerifyGraphs._sample"] < replays["VerifyGraphs._forward"]
    if name == "at-times":
        assert 0 < replays["DecodeGraphs._sample"] < replays["DecodeGraphs._forward"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_that_the_host_foretells_are_those_of_eager_steps(
    tmp_path: Path, name: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", seed=5)
    options = SuffixOptions(max_spec_factor=4.0, min_token_prob=0.01)
    asked = SpeculativeConfig(method="suffix", num_tokens=MOST, suffix=options)
    replays = check(folder, asked, replace(SETTINGS[name], suffix=options)).replays
    assert replays["VerifyGraphs._begin"] == replays["VerifyGraphs._forward"] > 5


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("mtp", "at-times"),
        ("mtp in a window", "always"),
        ("eagle3", "always"),
        ("draft_model", "always"),
        ("draft_model", "at-times"),
    ],
)
def test_answers_by_layers_are_those_of_eager_steps(tmp_path: Path, method: str, name: str) -> None:
    draft = None
    if method == "eagle3":
        folder = make_tiny_checkpoint(tmp_path / "model", "llama", layers=7, seed=5)
        draft = tmp_path / "draft"
        make_eagle3(draft, folder, draft_vocabulary=200, layer="layers.0")
    elif method == "draft_model":
        folder = make_tiny_checkpoint(tmp_path / "model", "qwen3", layers=3, seed=5)
        draft = make_draft_model(tmp_path / "draft", folder)
    elif method == "mtp in a window":
        made: dict[str, Any] = {"layers": 4, "extra": {"sliding_window": 24}}
        folder = make_tiny_checkpoint(tmp_path / "model", "mimo_v2", seed=5, **made)
        add_mimo_mtp_layers(folder)
    else:
        folder = make_tiny_checkpoint(tmp_path / "model", "glm4_moe", seed=5)
        add_mtp_layer(folder)
    asked = SpeculativeConfig(
        method=method.partition(" ")[0],
        num_tokens=MOST,
        draft_model=None if draft is None else str(draft),
    )
    replays = check(folder, asked, SETTINGS[name]).replays
    steps = replays["VerifyGraphs._forward"]
    assert replays["VerifyGraphs._begin"] == replays["VerifyGraphs._catch_up"] == steps > 20
    assert 0 < replays["DraftModelProposer.extend"] <= (MOST - 1) * steps
    assert replays["CatchUpDecodes.of_decodes"] == replays["DecodeGraphs._forward"] > 0


def test_what_is_captured_is_padding_until_a_letter_comes(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", seed=5)
    driver = CoreDriver(
        str(folder), speculative=SpeculativeConfig(num_tokens=MOST), device="cpu", **OPTIONS
    )
    steps: Any = driver.executor.runner.steps  # type: ignore[attr-defined]
    layout = steps.build_graphs(PlayedPool(lambda: None)).verify._layout
    for slots in (layout.slots, layout.token_slots):
        assert set(slots.tolist()) == {steps.slots.device.padding_slot}
