"""Log-probabilities of answers and prompts equal transformers', however the work is scheduled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from atom.model_engine.request import TokenLogprobs
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 24
# (logprobs, prompt_logprobs, and what must not change them) of each request.
ASKED: list[tuple[int | None, int | None, dict[str, Any]]] = [
    (3, 2, {}),
    (None, 0, {"temperature": 0.8, "seed": 1}),
    (0, None, {"temperature": 0.8, "seed": 2, "top_k": 5}),
    (5, 5, {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.5, "min_p": 0.02}),
    (None, None, {}),
    (20, 20, {"logit_bias": {7: 50.0}}),
]
RUNS: dict[str, dict[str, Any]] = {
    "at once": {},
    "a step behind": {"depth": 1},
    "small chunks": {"max_num_batched_tokens": 16, "depth": 1},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "preempted": {"num_kv_blocks": 12, "max_model_len": 160, "depth": 1},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("logprobs"))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def requests(vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    draw = np.random.default_rng(5)
    lengths = (70, 1, 20, 33, 60, 64)
    return [
        (
            draw.integers(3, vocab_size, size=length).tolist(),
            SamplingParams(
                **{"temperature": 0.0, **params},
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                max_tokens=NEW_TOKENS,
                ignore_eos=True,
            ),
        )
        for length, (logprobs, prompt_logprobs, params) in zip(lengths, ASKED, strict=True)
    ]


def assert_tells(
    entries: list[TokenLogprobs], tokens: list[int], expected: torch.Tensor, num_top: int
) -> None:
    """expected: [len(tokens), V], the log-probabilities where each token stands."""
    assert [entry.token_id for entry in entries] == tokens
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
        top = entry.top_logprobs[:num_top]
        likeliest = row.topk(num_top)
        assert [token for token, _ in top] == likeliest.indices.tolist()
        assert [value for _, value in top] == pytest.approx(likeliest.values.tolist(), abs=1e-4)


def assert_all_told(
    driver: CoreDriver,
    model: transformers.PreTrainedModel,
    given: list[tuple[list[int], SamplingParams]],
) -> None:
    answers = driver.generate_each(given)
    for index, (prompt, params) in enumerate(given):
        with torch.inference_mode():
            told = model(torch.tensor([prompt + answers[index]])).logits[0].log_softmax(-1)
        start = len(prompt) - 1
        if params.logprobs is None:
            assert driver.logprobs[index] == []
        else:
            expected = told[start : start + NEW_TOKENS]
            assert_tells(driver.logprobs[index], answers[index], expected, params.logprobs)
        if params.prompt_logprobs is None:
            assert driver.prompt_logprobs[index] == []
        else:
            assert_tells(
                driver.prompt_logprobs[index], prompt[1:], told[:start], params.prompt_logprobs
            )


@pytest.mark.parametrize("run", RUNS)
def test_every_token_is_told_of_once_and_from_raw_logits(checkpoint, model, run) -> None:
    options = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "num_kv_blocks": 64, **RUNS[run]}
    driver = CoreDriver(str(checkpoint), **options)
    assert_all_told(driver, model, requests(driver.vocab_size))
    assert (driver.scheduler.stats().preemptions_total > 0) == (run == "preempted")


def test_a_cached_prefix_is_computed_again_for_whoever_wants_to_know_of_it(checkpoint, model):
    driver = CoreDriver(str(checkpoint), num_kv_blocks=64, max_num_seqs=8)
    asked = requests(driver.vocab_size)
    driver.generate_each(asked)
    assert_all_told(driver, model, asked)
    # The requests that did not ask about their prompts took them from the cache.
    assert driver.scheduler.stats().cached_tokens_total == 16 + 48


def test_asking_changes_no_token(checkpoint) -> None:
    driver = CoreDriver(str(checkpoint), num_kv_blocks=64, max_num_seqs=8, depth=1)
    asked = requests(driver.vocab_size)
    silent = [
        (prompt, SamplingParams(temperature=0.7, seed=index, max_tokens=20))
        for index, (prompt, _) in enumerate(asked)
    ]
    telling = [
        (prompt, SamplingParams(temperature=0.7, seed=index, max_tokens=20, logprobs=index))
        for index, (prompt, _) in enumerate(asked)
    ]
    assert driver.generate_each(telling) == driver.generate_each(silent)
