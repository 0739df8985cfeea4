"""A grammar and the other controls of sampling hold together: each row's token is the likeliest of
what both leave, worked out from transformers' logits and the language itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom.structured_outputs import StructuredOutputsParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

LENGTH = 12
PROMPT = "hello ab the world"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("guided"))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def driver(checkpoint: Path) -> Iterator[CoreDriver]:
    driver = CoreDriver(str(checkpoint), num_kv_blocks=64, max_num_seqs=8, depth=1)
    yield driver
    driver.guided.close()


def token(tokenizer: Tokenizer, text: str) -> int:
    (found,) = tokenizer.encode(text, add_special_tokens=False)
    return found


def controls(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    a, h, th = (token(tokenizer, text) for text in ("a", "h", "th"))
    return {
        "none": {},
        "bias": {"logit_bias": {a: 30.0, h: -30.0}},
        "frequency": {"frequency_penalty": 2.0},
        "repetition": {"repetition_penalty": 3.0},
        "allowed": {"allowed_token_ids": (a, h, 291, 293)},
        "bad words": {"bad_words_token_ids": ((h,), (th, th), (a, th))},
    }


def oracle(
    model: transformers.PreTrainedModel,
    tokenizer: Tokenizer,
    ends: tuple[int, ...],
    params: dict[str, Any],
) -> list[int]:
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    spellings = [tokenizer.spelling(number) for number in range(model.config.vocab_size)]
    answer: list[int] = []
    said = b""
    while True:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, -1]
        for number, spelling in enumerate(spellings):
            begun = re.fullmatch(rb"[aeht]{0,%d}" % LENGTH, said + spelling)
            grammatical = len(said) == LENGTH if number in ends else bool(begun and spelling)
            allowed = number in params.get("allowed_token_ids", range(len(spellings)))
            bad = any(
                (*answer, number)[-len(word) :] == word
                for word in params.get("bad_words_token_ids", ())
            )
            if not grammatical or not allowed or bad:
                logits[number] = -torch.inf
        for number, bias in params.get("logit_bias", {}).items():
            logits[number] += bias
        factor = params.get("repetition_penalty", 1.0)
        for number in {*prompt, *answer}:
            logits[number] = (
                logits[number] / factor if logits[number] > 0 else logits[number] * factor
            )
        for number in set(answer):
            logits[number] -= params.get("frequency_penalty", 0.0) * answer.count(number)
        answer.append(int(logits.argmax()))
        if answer[-1] in ends:
            return answer
        said += spellings[answer[-1]]


@pytest.mark.parametrize(
    "control", ["none", "bias", "frequency", "repetition", "allowed", "bad words"]
)
def test_the_likeliest_token_that_grammar_and_control_leave(
    driver: CoreDriver, model: transformers.PreTrainedModel, tokenizer: Tokenizer, control: str
) -> None:
    params = controls(tokenizer)[control]
    ends = driver.config.model.eos_token_ids
    expected = oracle(model, tokenizer, ends, params)
    asked = StructuredOutputsParams(regex=f"[aeht]{{{LENGTH}}}")
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    (got,) = driver.generate([prompt], max_tokens=99, structured_outputs=asked, **params)
    assert got == expected
    if control != "none":
        assert expected != oracle(model, tokenizer, ends, {}), "the control changes nothing"
