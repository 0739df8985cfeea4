"""What SamplingParams accepts, what it refuses and in which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atom.errors import RequestError
from atom.sampling_params import MAX_BAD_WORD_TOKENS, SamplingParams


@pytest.mark.parametrize(
    ("params", "param", "words"),
    [
        ({"n": 0}, "n", "between 1 and 128, got 0"),
        ({"n": 129}, "n", "between 1 and 128, got 129"),
        ({"temperature": float("nan")}, "temperature", "between 0 and 100"),
        ({"top_k": -2}, "top_k", "at least 0, got -2"),
        ({"top_p": 0.0}, "top_p", r"in \(0, 1\], got 0.0"),
        ({"min_p": 1.5}, "min_p", "between 0 and 1, got 1.5"),
        ({"min_p": -0.1}, "min_p", "between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "between 0.01 and 100"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty", "between 0.01 and 100"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty", "between 0.01 and 100"),
        ({"presence_penalty": 2.1}, "presence_penalty", "between -2 and 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "between -2 and 2"),
        ({"logit_bias": {5: 101.0}}, "logit_bias", "between -100 and 100, got 101"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias", "at most 1024"),
        ({"allowed_token_ids": ()}, "allowed_token_ids", "at least one token"),
        ({"bad_words": ("",)}, "bad_words", "1 to 256 characters"),
        ({"bad_words": ("x",) * 257}, "bad_words", "at most 256"),
        ({"bad_words_token_ids": ((),)}, "bad_words", f"1 to {MAX_BAD_WORD_TOKENS} tokens"),
        ({"bad_words_token_ids": ((1,) * 17,)}, "bad_words", "got 17"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", r"max_tokens \(3\), got 4"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20, got 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "between 0 and 20"),
        ({"seed": 2**63}, "seed", "64 bits"),
    ],
)
def test_values_out_of_range_are_refused_by_name(
    params: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(**params)
    assert caught.value.param == param


def test_every_control_survives_the_wire() -> None:
    params = SamplingParams(
        n=3, min_p=0.1, min_tokens=2, repetition_penalty=1.2, presence_penalty=-1,
        frequency_penalty=0.5, logit_bias={7: -100.0, 8: 2.5}, allowed_token_ids=(7, 8),
        bad_words=("no",), bad_words_token_ids=((1, 2), (3,)), logprobs=0, prompt_logprobs=20,
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_each_penalty_alone_makes_the_history_count() -> None:
    assert not SamplingParams().penalizes
    assert SamplingParams(repetition_penalty=0.9).penalizes
    assert SamplingParams(presence_penalty=0.1).penalizes
    assert SamplingParams(frequency_penalty=-0.1).penalizes
