from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from atom.config import Config
from atom.errors import RequestError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import InputProcessor
from atom.model_engine.request import Request
from atom.sampling_params import SamplingParams
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.models.byte_tokenizer import TURN_END, TURN_START

CONTEXT = 64


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = write_model_folder(tmp_path_factory.mktemp("model"), context_tokens=CONTEXT)
    return build_test_config(folder)


@pytest.fixture(scope="module")
def inputs(config: Config) -> InputProcessor:
    return InputOutputProcessor(config).inputs


def build(inputs: InputProcessor, token_ids: list[int], **params: object) -> Request:
    prepared = inputs.prepare(SamplingParams(**params))  # type: ignore[arg-type]
    (request,) = inputs.build_requests(iter([7]), token_ids, prepared, arrive_time=1.5)
    return request


def test_an_answer_may_fill_the_context_when_no_length_is_asked(inputs: InputProcessor) -> None:
    request = build(inputs, [1] * 10, max_tokens=None)
    assert request.max_total_tokens == CONTEXT
    assert request.params.max_tokens == CONTEXT - 10
    assert (request.id, request.arrive_time) == (7, 1.5)


def test_an_answer_is_as_long_as_asked_within_the_context(inputs: InputProcessor) -> None:
    assert build(inputs, [1] * 10, max_tokens=5).max_total_tokens == 15
    assert build(inputs, [1] * 10, max_tokens=10**30).max_total_tokens == CONTEXT


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 10 * CONTEXT])
def test_a_prompt_without_room_for_an_answer_is_refused_with_both_lengths(
    inputs: InputProcessor, length: int
) -> None:
    with pytest.raises(RequestError, match=rf"has {length} tokens.*{CONTEXT} tokens") as caught:
        build(inputs, [1] * length, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.status == 400


def test_the_longest_prompt_that_fits_gets_one_token(inputs: InputProcessor) -> None:
    assert build(inputs, [1] * (CONTEXT - 1), max_tokens=9).max_total_tokens == CONTEXT


def test_an_empty_prompt_is_refused(inputs: InputProcessor) -> None:
    with pytest.raises(RequestError, match="prompt is empty"):
        build(inputs, inputs.tokenize(""))


@pytest.mark.parametrize("wrong", [-1, 294, 2**40, 10**30])
def test_token_ids_outside_the_vocabulary_are_refused(inputs: InputProcessor, wrong: int) -> None:
    with pytest.raises(RequestError, match=f"token id {wrong} is outside.*ids 0 to 293") as caught:
        inputs.tokenize([0, wrong, 293])
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match=f"token id {wrong}") as caught:
        build(inputs, [1], stop_token_ids=(wrong,))
    assert caught.value.param == "stop_token_ids"


def test_numpy_token_ids_are_plain_integers_on_the_wire(inputs: InputProcessor) -> None:
    request = build(inputs, inputs.tokenize(np.array([5, 6], dtype=np.int64)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request


@pytest.mark.parametrize("top_k", [294, 10**6, 10**30])
def test_top_k_that_keeps_everything_is_off(inputs: InputProcessor, top_k: int) -> None:
    """Also what no device integer could hold."""
    assert build(inputs, [1], top_k=top_k).params.top_k == -1
    assert build(inputs, [1], top_k=293).params.top_k == 293


def test_text_that_is_not_unicode_is_refused(inputs: InputProcessor) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        inputs.tokenize("half a pair: \ud83d")


def test_random_weights_need_no_tokenizer_but_then_token_ids(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    processor = InputOutputProcessor(build_test_config(folder, load_dummy=True))
    assert processor.inputs.tokenize([1, 2]) == [1, 2]
    with pytest.raises(RequestError, match="no tokenizer; give prompts as token ids"):
        processor.inputs.tokenize("text")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {294: 1.0}),
        ("allowed_token_ids", (1, 294)),
        ("bad_words_token_ids", ((1, 294),)),
    ],
)
def test_every_token_id_that_a_request_names_is_in_the_vocabulary(
    inputs: InputProcessor, field: str, value: object
) -> None:
    with pytest.raises(RequestError, match="token id 294 is outside"):
        build(inputs, [1], **{field: value})


def test_bad_words_become_token_ids_with_and_without_a_leading_space(
    inputs: InputProcessor,
) -> None:
    params = build(inputs, [1], bad_words=("and", " hello"), bad_words_token_ids=((9, 9),)).params
    spellings = [tuple(inputs.tokenize(text)) for text in ("and", " and", "hello")]
    # " hello" is a space and then "hello": keeping "hello" out keeps it out.
    assert params.bad_words_token_ids == ((9, 9), *spellings)
    assert params.bad_words == ()


def test_fewest_tokens_are_no_more_than_there_is_room_for(inputs: InputProcessor) -> None:
    params = build(inputs, [1] * 60, max_tokens=40, min_tokens=30).params
    assert (params.min_tokens, params.max_tokens) == (4, 4)


def test_several_answers_are_several_requests(inputs: InputProcessor) -> None:
    prepared = inputs.prepare(SamplingParams(n=3, seed=5))
    requests = inputs.build_requests(iter([7, 8, 9]), [1, 2], prepared, arrive_time=1.5)
    assert [request.id for request in requests] == [7, 8, 9]
    assert [request.params.seed for request in requests] == [5, 6, 7]
    assert {request.params.n for request in requests} == {1}
    assert all(request.prompt_token_ids == [1, 2] for request in requests)


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": (7,), "bad_words_token_ids": ((7,),)},
        {"allowed_token_ids": (7, 7), "bad_words_token_ids": ((7, 7),)},
        {"allowed_token_ids": (7, 293), "min_tokens": 1, "stop_token_ids": (7,)},
    ],
)
def test_a_request_that_forbids_every_token_it_allows_is_refused(
    inputs: InputProcessor, params: dict[str, Any]
) -> None:
    """293 is an end token of the model."""
    with pytest.raises(RequestError, match="allow another token"):
        build(inputs, [1], **params)
    build(inputs, [1], **params | {"allowed_token_ids": (7, 8, 293)})


def test_bad_words_may_not_forbid_the_whole_vocabulary(inputs: InputProcessor) -> None:
    """Each forbids its last token only after its first, which may be what the prompt ends with."""
    words = tuple((1, token) for token in range(294))
    with pytest.raises(RequestError, match="allow another token") as caught:
        build(inputs, [1], bad_words_token_ids=words)
    assert caught.value.param == "bad_words"
    build(inputs, [1], bad_words_token_ids=words[1:])


@pytest.mark.parametrize("temperature", [0.0, 1e-50, 1e-42, 9e-6])
def test_a_temperature_that_float32_could_not_divide_by_is_greedy(
    inputs: InputProcessor, temperature: float
) -> None:
    assert build(inputs, [1], temperature=temperature).params.temperature == 0.0
    assert build(inputs, [1], temperature=1e-5).params.temperature == 1e-5


def test_a_stop_text_that_names_a_special_token_stands_for_it(inputs: InputProcessor) -> None:
    """Special tokens are left out of the text, where no stop string could be found."""
    params = build(
        inputs, [1], stop_strings=(TURN_START, "end", TURN_END), stop_token_ids=(293, 5)
    ).params
    turn_start, turn_end = inputs.tokenize(TURN_START + TURN_END)
    assert turn_end == 293
    assert params.stop_token_ids == (293, 5, turn_start)
    assert params.stop_strings == (TURN_START, "end", TURN_END)
    assert build(inputs, [1], stop_strings=("end",)).params.stop_token_ids == ()


def test_a_text_far_beyond_the_context_is_refused_before_all_of_it_is_tokenised(
    inputs: InputProcessor,
) -> None:
    text = "x" * 1_000_000
    with pytest.raises(RequestError, match=f"more than {2 * CONTEXT} tokens") as caught:
        inputs.tokenize(text)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert len(inputs.tokenize(text[:100_000], for_answer=False)) == 100_000
    with pytest.raises(RequestError, match="in parts") as caught:
        inputs.tokenize(text * 2, for_answer=False)
    assert caught.value.status == 413
