"""What a call multiplies is bounded, and what is within the bound always reaches the engine."""

from __future__ import annotations

import pytest

from atom.errors import RequestError
from atom.model_engine.request import Request
from atom.model_engine.wire.engine_protocol import MAX_MESSAGE_BYTES, AddBody, encode
from atom.model_engine.wire.request_size import (
    MOST_CALL_BYTES,
    MOST_PROMPT_SCORES,
    check_size,
    parts_of,
)
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams

LONG_STOPS = ("\N{GRINNING FACE}" * 1023 + "a",) * 16
LARGEST = {
    "stop strings": SamplingParams(stop_strings=LONG_STOPS),
    "allowed tokens": SamplingParams(allowed_token_ids=tuple(range(100_000, 140_000))),
    "biases": SamplingParams(logit_bias=dict.fromkeys(range(100_000, 101_024), 1.5)),
    "bad words": SamplingParams(bad_words_token_ids=((100_000,) * 16,) * 700),
    "a schema": SamplingParams(
        structured_outputs=StructuredOutputsParams(json={"a": "x" * 60_000})
    ),
}


def requests_of(params: SamplingParams, count: int, prompt: list[int]) -> list[Request]:
    return [Request(number, prompt, params, len(prompt) + 1, 0.0) for number in range(count)]


@pytest.mark.parametrize("what", LARGEST)
@pytest.mark.parametrize("prompt_tokens", [1, 20_000])
def test_every_part_fits_a_message(what: str, prompt_tokens: int) -> None:
    requests = requests_of(LARGEST[what], 300, [150_000] * prompt_tokens)
    parts = list(parts_of(requests))
    assert [request for part in parts for request in part] == requests
    for part in parts:
        assert sum(map(len, encode(AddBody(part)))) <= MAX_MESSAGE_BYTES


def test_a_request_alone_is_a_part_however_large() -> None:
    (part,) = parts_of(requests_of(SamplingParams(), 1, [150_000] * 10_000_000))
    assert len(part) == 1


@pytest.mark.parametrize("what", LARGEST)
def test_a_thousand_answers_that_each_carry_much_are_refused(what: str) -> None:
    params = LARGEST[what]
    check_size([[1, 2, 3]], params)
    with pytest.raises(RequestError, match=f"takes {MOST_CALL_BYTES // 2**20} MiB") as caught:
        check_size([[1, 2, 3]] * 16_384, params)
    assert caught.value.param == "prompt"


def test_answers_to_a_long_prompt_are_bounded_by_what_they_make_together() -> None:
    prompt = [150_000] * 400_000
    check_size([prompt], SamplingParams(n=64))
    with pytest.raises(RequestError, match="fewer answers") as caught:
        check_size([prompt], SamplingParams(n=128))
    assert caught.value.param == "n"


def test_what_is_told_of_prompts_is_bounded_with_the_numbers() -> None:
    prompt = [5] * 2**13
    check_size([prompt] * 32, SamplingParams(prompt_logprobs=1))
    check_size([prompt] * 64, SamplingParams(prompt_logprobs=0))
    check_size([prompt] * 65, SamplingParams(logprobs=20))  # of the answers only
    for params in (SamplingParams(prompt_logprobs=20), SamplingParams(prompt_logprobs=1, n=8)):
        with pytest.raises(RequestError, match=f"at most {MOST_PROMPT_SCORES}") as caught:
            check_size([prompt] * 5, params)
        assert caught.value.param == "prompt_logprobs"
