"""A cached prefix goes on from a state that was kept at a block's end, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom.entrypoints.startup.startup_table import bytes_text, startup_rows
from atom.model_engine.runner import predicted_memory
from atom.sampling_params import SamplingParams
from atom.sizing import KvElement, kv_layout
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "max_model_len": 256, "max_num_batched_tokens": 48, "max_num_seqs": 6, "num_kv_blocks": 96,
}  # fmt: skip
INTERVAL = 32  # of this model: a checkpoint takes as much as the keys of 84 tokens
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("states"), **CHECKPOINTS["qwen3-next"])


def drawn(seed: int, *lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 290, size).tolist() for size in lengths]


def answers(checkpoint: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Without a prefix cache, one after the other."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, "enable_prefix_caching": False, **options})
    asked = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    return [driver.generate([prompt], **asked)[0] for prompt in prompts]


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("block_size", [1, 16])
def test_prompts_that_begin_alike_go_on_from_the_last_checkpoint(
    checkpoint: Path, depth: int, block_size: int
) -> None:
    head, *tails = drawn(1, 100, 1, 20, 40, 77)
    prompts = [head + tail for tail in tails]
    sizes = {"block_size": block_size, "num_kv_blocks": 1536 // block_size}
    driver = CoreDriver(str(checkpoint), depth=depth, **{**OPTIONS, **sizes})
    asked = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    first = driver.generate(prompts[:1], **asked)
    rest = driver.generate(prompts[1:], **asked)
    assert first + rest == answers(checkpoint, prompts)
    saves = driver.scheduler.blocks.checkpoints
    assert saves is not None
    every = saves.interval_blocks * block_size
    assert driver.scheduler.stats().cached_tokens_total == 3 * (100 // every * every)


def test_an_answer_is_gone_on_from_as_its_prompt_is(checkpoint: Path) -> None:
    (prompt,) = drawn(2, 30)
    driver = CoreDriver(str(checkpoint), **OPTIONS)
    (answer,) = driver.generate([prompt], max_tokens=70, ignore_eos=True)
    turn = prompt + answer + drawn(3, 9)[0]
    again = driver.generate([turn], max_tokens=NEW_TOKENS, ignore_eos=True)
    assert again == answers(checkpoint, [turn])
    assert driver.scheduler.stats().cached_tokens_total == 3 * INTERVAL


def test_no_more_sequences_run_than_states_leave_room_for(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = drawn(5, 20, 9, 31, 14, 25)
    monkeypatch.setattr(predicted_memory, "running_sequences", lambda *_: 2)
    driver = CoreDriver(str(checkpoint), **OPTIONS)
    assert driver.report.max_num_seqs == 2
    assert dict(startup_rows(driver.report))["states"].startswith(
        f"{bytes_text(driver.report.state_bytes)} of all sequences that may run (2, since 6 "
    )
    found = driver.generate(prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert found == answers(checkpoint, prompts)


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.whole), 1])
def test_preempted_sequences_go_on_from_their_checkpoints(checkpoint: Path, depth: int) -> None:
    prompts = drawn(4, 100, 90, 70, 50, 120, 33)
    driver = CoreDriver(str(checkpoint), depth=depth, **{**OPTIONS, "num_kv_blocks": 24})
    asked = {"max_tokens": 40, "ignore_eos": True}
    got = driver.generate(prompts, **asked)
    alone = CoreDriver(str(checkpoint), **{**OPTIONS, "enable_prefix_caching": False})
    assert got == [alone.generate([prompt], **asked)[0] for prompt in prompts]
    assert driver.scheduler.stats().preemptions_total > 0


def test_few_checkpoints_serve_the_prefixes_that_were_used_last(checkpoint: Path) -> None:
    """More prefixes than blocks and checkpoints hold, again and again in other orders."""
    prompts = drawn(5, *[100] * 6)
    expected = answers(checkpoint, prompts)
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, "num_kv_blocks": 20})
    draw = np.random.default_rng(6)
    for _ in range(6):
        chosen = draw.integers(0, 6, 3).tolist()
        asked = [prompts[number] for number in chosen]
        got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == [expected[number] for number in chosen]
    assert driver.scheduler.stats().cached_tokens_total > 0


def test_aborted_sequences_give_their_checkpoints_back(checkpoint: Path) -> None:
    driver = CoreDriver(str(checkpoint), depth=1, **OPTIONS)
    saves = driver.scheduler.blocks.checkpoints
    assert saves is not None
    whole = len(saves._free)
    for number, prompt in enumerate(drawn(7, 32, 64, 70)):
        driver.add(prompt, SamplingParams(temperature=0.0))
        for _ in range(number + 1):
            driver.step()
        driver.pipeline.abort(driver.pipeline.open_requests())
        while driver.has_work():
            driver.step()
        assert len(saves._of_block) + len(saves._free) == whole


def test_a_reset_cache_has_no_checkpoints(checkpoint: Path) -> None:
    driver = CoreDriver(str(checkpoint), **OPTIONS)
    prompts = drawn(8, 100)
    first = driver.generate(prompts, max_tokens=NEW_TOKENS, ignore_eos=True)
    saves = driver.scheduler.blocks.checkpoints
    assert saves is not None
    assert len(saves._of_block) == 3
    driver.scheduler.blocks.reset_prefix_cache()
    assert len(saves._of_block) == 0
    assert driver.generate(prompts, max_tokens=NEW_TOKENS, ignore_eos=True) == first
    assert driver.scheduler.stats().cached_tokens_total == 0


def test_the_interval_follows_from_what_a_state_and_keys_take(checkpoint: Path) -> None:
    driver = CoreDriver(str(checkpoint), **OPTIONS)
    layout = kv_layout(driver.config.model.facts, KvElement(4))
    assert (INTERVAL - 16) * 4 < layout.state_bytes / layout.growing_bytes_per_token < INTERVAL * 4
    assert driver.scheduler.blocks.checkpoints is not None
    assert driver.scheduler.blocks.checkpoints.interval_blocks == INTERVAL // 16
