"""Every sampling control end to end on a tiny model, against transformers' own processors, and the
same tokens however the engine happens to schedule the work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.models.greedy_oracle import Change, greedy, token_by_token
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("controls"))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, vocab_size, size=n).tolist() for n in (1, 5, 17, 40, 100)]


def processor(instance: Any) -> Change:
    """A processor of transformers, which sees prompt and answer alike."""
    return lambda logits, prompt, answer: instance(
        torch.tensor([prompt + answer]), logits.unsqueeze(0)
    )[0]


def additive(amount_of: Callable[[list[int], int], float]) -> Change:
    """Adds to each token's logit what follows from the answer so far."""

    def change(logits: torch.Tensor, prompt: list[int], answer: list[int]) -> torch.Tensor:
        return logits + torch.tensor([amount_of(answer, t) for t in range(len(logits))])

    return change


@cache
def greedy_bad_words(model: transformers.PreTrainedModel) -> tuple[tuple[int, ...], ...]:
    """What the model says most readily: single tokens, pairs and triples of its own answers, also
    across the border of the prompt."""
    words: list[tuple[int, ...]] = []
    for prompt in prompts(model.config.vocab_size):
        said = token_by_token(model, prompt, NEW_TOKENS)
        words += [(said[0],), (prompt[-1], said[0]), tuple(said[1:3]), tuple(said[4:7])]
    return tuple(dict.fromkeys(words))


def cases(
    model: transformers.PreTrainedModel,
) -> dict[str, tuple[dict[str, Any], tuple[Change, ...]]]:
    vocab = model.config.vocab_size
    bias = {token: 3.0 if token % 3 else -100.0 for token in range(0, vocab, 2)}
    allowed = tuple(range(5, 60))
    rest = [token for token in range(vocab) if token not in allowed]
    bad_words = greedy_bad_words(model)
    repetition = processor(transformers.RepetitionPenaltyLogitsProcessor(1.4))
    return {
        "repetition": ({"repetition_penalty": 1.4}, (repetition,)),
        "repetition below one": (
            {"repetition_penalty": 0.7},
            (processor(transformers.RepetitionPenaltyLogitsProcessor(0.7)),),
        ),
        "presence": (
            {"presence_penalty": 1.5},
            (additive(lambda answer, token: -1.5 * (token in answer)),),
        ),
        "frequency": (
            {"frequency_penalty": 0.4},
            (additive(lambda answer, token: -0.4 * answer.count(token)),),
        ),
        "bias": (
            {"logit_bias": bias},
            (additive(lambda answer, token: bias.get(token, 0.0)),),
        ),
        "allowed": (
            {"allowed_token_ids": allowed},
            (processor(transformers.SuppressTokensLogitsProcessor(rest)),),
        ),
        "bad words": (
            {"bad_words_token_ids": bad_words},
            (
                processor(
                    transformers.NoBadWordsLogitsProcessor([list(word) for word in bad_words])
                ),
            ),
        ),
        "all at once": (
            {
                "repetition_penalty": 1.4,
                "frequency_penalty": 0.3,
                "logit_bias": bias,
                "bad_words_token_ids": bad_words,
            },
            (
                additive(lambda answer, token: bias.get(token, 0.0)),
                processor(
                    transformers.NoBadWordsLogitsProcessor([list(word) for word in bad_words])
                ),
                repetition,
                additive(lambda answer, token: -0.3 * answer.count(token)),
            ),
        ),
    }


CASES = (
    "repetition", "repetition below one", "presence", "frequency", "bias", "allowed", "bad words",
    "all at once",
)  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "at once": {},
    "a step behind": {"depth": 1},
    "sampled later": {"depth": 1, "samples_later": True},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "small chunks": {"max_num_batched_tokens": 16, "depth": 1},
    "preempted": {"num_kv_blocks": 12, "max_model_len": 160, "depth": 1,
                  "enable_prefix_caching": False},
    "two at a time": {"max_num_seqs": 2},
}  # fmt: skip


def driver_of(checkpoint: Path, **options: Any) -> CoreDriver:
    defaults = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "num_kv_blocks": 64}
    return CoreDriver(str(checkpoint), **{**defaults, **options})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_greedy_answers_under_a_control_equal_transformers(checkpoint, model, case) -> None:
    params, changes = cases(model)[case]
    asked = prompts(model.config.vocab_size)
    driver = driver_of(checkpoint, depth=1)
    got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True, **params)
    pairs = list(zip(asked, got, strict=True))
    assert got == [greedy(model, prompt, told, *changes) for prompt, told in pairs]
    assert {len(told) for told in got} == {NEW_TOKENS}
    assert got != [greedy(model, prompt, told) for prompt, told in pairs], "it changes nothing"


def answers(checkpoint: Path, *, backwards: bool = False, **options: Any) -> list[list[int]]:
    driver = driver_of(checkpoint, **options)
    step = -1 if backwards else 1
    given = driver.generate_each(mixed_requests(driver.vocab_size, NEW_TOKENS)[::step])
    if "num_kv_blocks" in options:
        assert driver.scheduler.stats().preemptions_total > 0
    return given[::step]


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> list[list[int]]:
    return answers(checkpoint, max_num_seqs=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", RUNS)
def test_no_schedule_changes_what_is_drawn(checkpoint, alone, run) -> None:
    assert answers(checkpoint, **RUNS[run]) == alone


def test_no_cached_prefix_changes_what_is_drawn(checkpoint, alone) -> None:
    """Penalties and bad words look at tokens that are not computed again."""
    driver = driver_of(checkpoint, depth=1, num_kv_blocks=256)
    asked = mixed_requests(driver.vocab_size, NEW_TOKENS)
    assert [driver.generate_each(asked) for _ in range(2)] == [alone, alone]
    assert driver.scheduler.stats().cached_tokens_total > 0


def test_no_order_of_arrival_changes_what_is_drawn(checkpoint, alone) -> None:
    assert answers(checkpoint, backwards=True) == alone


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", RUNS)
def test_an_answer_goes_on_behind_what_another_engine_generated(checkpoint, alone, run) -> None:
    """Whatever controls look at (penalties, bad words, fewest tokens, seeds) is as it was."""
    driver = driver_of(checkpoint, **RUNS[run])
    rest: dict[int, list[int]] = {}
    for index, (prompt, params) in enumerate(mixed_requests(driver.vocab_size, NEW_TOKENS)):
        begun = alone[index][: index % len(alone[index])]  # one at least is left
        rest[driver.add(prompt, params, generated=begun)] = list(begun)
    while driver.has_work():
        result = driver.step()
        for number, run_of_tokens in result.runs() if result is not None else ():
            rest[number] += run_of_tokens
    assert list(rest.values()) == alone


@pytest.mark.parametrize("depth", [0, 1])
def test_nothing_ends_an_answer_before_its_fewest_tokens(checkpoint, depth) -> None:
    driver = driver_of(checkpoint, depth=depth)
    ends = driver.config.model.eos_token_ids
    prompt = list(range(3, 20))
    # Made so likely that they are chosen as soon as they may be.
    eager = {"logit_bias": dict.fromkeys([*ends, 50], 100.0), "max_tokens": 20}
    for least in (0, 1, 5):
        (answer,) = driver.generate([prompt], min_tokens=least, stop_token_ids=(50,), **eager)
        assert len(answer) == least + 1
        assert answer[-1] in (*ends, 50)
        assert not set(answer[:-1]) & {*ends, 50}
    # An end token that ends nothing is a token like any other.
    (answer,) = driver.generate([prompt], min_tokens=5, ignore_eos=True, **eager)
    assert set(answer) <= {*ends, 50}
