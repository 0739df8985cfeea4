"""No token id that the model has no embedding for reaches the engine, whoever made it."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.config import Config, build_config
from atom.config_values import EngineOptions
from atom.errors import ModelError, RequestError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.sampling_params import SamplingParams
from atom.structured_outputs.thinking_budget import ThinkingBudget
from atom.tokenizer_file import MOST_TOKEN_ID
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.models.byte_tokenizer import TURN_START

SIZE = 294  # of the byte tokenizer


def edit(file: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def with_added_tokens(
    folder: Path, *texts: str, first_id: int = SIZE, special: bool = True
) -> Path:
    """A model folder whose tokenizer has more tokens than its model."""
    write_model_folder(folder)
    tokens = [
        {"id": first_id + at, "content": text, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": special}
        for at, text in enumerate(texts)
    ]  # fmt: skip
    edit(folder / "tokenizer.json", lambda content: content["added_tokens"].extend(tokens))
    return folder


def refusal_of(ask: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        ask()
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
def test_a_token_beyond_the_embedding_is_refused_by_name_wherever_a_text_holds_it(
    tmp_path: Path, special: bool
) -> None:
    folder = with_added_tokens(tmp_path, "<|extra|>", special=special)
    processor = InputOutputProcessor(build_test_config(folder))
    inputs = processor.inputs
    chat = processor.render_chat([{"role": "user", "content": "a <|extra|> b"}])
    asks: dict[str, Callable[[], object]] = {
        "prompt": lambda: inputs.tokenize("hi <|extra|> there"),
        "messages": lambda: inputs.tokenize(chat, add_special_tokens=False),
        "text of /tokenize": lambda: inputs.tokenize("<|extra|>", for_answer=False),
        "bad_words": lambda: inputs.prepare(SamplingParams(bad_words=("x<|extra|>",))),
    }
    if special:
        asks["stop"] = lambda: inputs.prepare(SamplingParams(stop_strings=("<|extra|>",)))
    for name, ask in asks.items():
        error = refusal_of(ask)
        assert "'<|extra|>'" in str(error), name
        assert "id 294" in str(error), name
        assert "0 to 293" in str(error), name
    assert refusal_of(asks["bad_words"]).param == "bad_words"


def test_reasoning_is_not_closed_by_a_mark_that_the_model_has_not(tmp_path: Path) -> None:
    folder = with_added_tokens(tmp_path, "<think>", "</think>")
    processor = InputOutputProcessor(build_test_config(folder))
    assert processor.tokenizer is not None
    opening, closing = (
        tuple(processor.tokenizer.encode(mark, add_special_tokens=False))
        for mark in ("<think>", "</think>")
    )
    params = SamplingParams(thinking=ThinkingBudget(3, True, opening, closing))
    error = refusal_of(lambda: processor.inputs.prepare(params))
    assert error.param == "thinking_token_budget"
    assert "id 294" in str(error)


def test_stop_texts_of_plain_tokens_are_looked_for_in_the_text_as_ever(tmp_path: Path) -> None:
    folder = with_added_tokens(tmp_path, "<|extra|>", special=False)
    inputs = InputOutputProcessor(build_test_config(folder)).inputs
    assert inputs.prepare(SamplingParams(stop_strings=("<|extra|>",))).stop_token_ids == ()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_texts_become_fits_the_embedding_or_is_refused(tmp_path: Path, seed: int) -> None:
    """Vocabularies cut anywhere, texts of all their tokens."""
    draw = random.Random(seed)
    added = [f"<|t{number}|>" for number in range(draw.randint(0, 4))]
    folder = with_added_tokens(tmp_path, *added, special=draw.random() < 0.5)
    size = draw.randint(200, SIZE + len(added))
    edit(folder / "config.json", lambda content: content.update(vocab_size=size, eos_token_id=2))
    inputs = InputOutputProcessor(build_test_config(folder)).inputs
    pieces = [*added, TURN_START, *map(chr, range(32, 127)), "ä", "気", "\0", "<|t"]
    outcomes: set[int] = set()
    for _ in range(60):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 3)))
        params = SamplingParams(
            stop_strings=tuple(draw.choices(pieces, k=draw.randint(0, 1))),
            bad_words=tuple(draw.choices(pieces, k=draw.randint(0, 1))),
        )
        try:
            prepared = inputs.prepare(params)
            made = inputs.tokenize(text)
        except RequestError as error:
            outcomes.add(error.status)
            continue
        outcomes.add(200)
        (request,) = inputs.build_requests(iter([1]), made, prepared, arrive_time=0.0)
        words = [token for word in request.params.bad_words_token_ids for token in word]
        ids = [*request.prompt_token_ids, *request.params.stop_token_ids, *words]
        assert max(ids) < size
    assert outcomes <= ({200} if size == SIZE + len(added) else {200, 400})


def misfits_of(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        InputOutputProcessor(build_test_config(folder)).warn_of_misfits()
    return [record.getMessage() for record in caplog.records]


def test_a_tokenizer_that_fits_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path)
    assert misfits_of(tmp_path, caplog) == []
    edit(tmp_path / "config.json", lambda content: content.update(vocab_size=SIZE + 26))
    assert misfits_of(tmp_path, caplog) == [], "padding of the head"


def test_one_warning_tells_what_cannot_be_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_added_tokens(tmp_path, *(f"<|e{number}|>" for number in range(9)))
    (message,) = misfits_of(folder, caplog)
    assert "tokenizer.json" in message
    assert "'<|e0|>' (id 294)" in message
    assert "9 in all" in message
    assert "vocab_size 294" in message
    assert "<|e8|>" not in message, "some are named, not thousands"
    assert "chat" not in message


def test_it_tells_that_chats_cannot_be_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path)
    edit(tmp_path / "config.json", lambda content: content.update(vocab_size=280, eos_token_id=2))
    end, message = misfits_of(tmp_path, caplog)
    assert "eos_token_id 293 is outside the vocabulary" in end, "the tokenizer's own end token"
    assert "every chat" in message
    assert repr(TURN_START) in message


def test_end_tokens_that_the_model_has_not_end_nothing_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path, eos_token_id=[5, 294, -1, 10**9])
    with caplog.at_level(logging.WARNING):
        config: Config = build_config(EngineOptions.of(model=str(tmp_path), device="cpu"))
    assert config.model.eos_token_ids == (5, 293, 291), "config.json's, too"
    (record,) = caplog.records
    for told in ("294, -1, 1000000000", "vocab_size 294", "generation_config.json"):
        assert told in record.getMessage()


# ---- tokenizer.json by numbers ------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [10**9, MOST_TOKEN_ID + 1])
def test_an_id_that_no_model_has_is_refused_with_its_field(tmp_path: Path, wrong: int) -> None:
    folder = with_added_tokens(tmp_path / "added", "<|extra|>", first_id=wrong)
    with pytest.raises(ModelError, match=rf"tokenizer\.json: added_tokens: .*extra.* id {wrong}"):
        InputOutputProcessor(build_test_config(folder))
    folder = write_model_folder(tmp_path / "vocabulary")
    edit(folder / "tokenizer.json", lambda content: content["model"]["vocab"].update(a=wrong))
    with pytest.raises(ModelError, match=rf"tokenizer\.json: model\.vocab: 'a' has id {wrong}.*;"):
        InputOutputProcessor(build_test_config(folder))


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "7", None])
def test_an_id_that_is_none_is_a_damaged_file(tmp_path: Path, wrong: object) -> None:
    folder = write_model_folder(tmp_path)
    edit(folder / "tokenizer.json", lambda content: content["model"]["vocab"].update(a=wrong))
    with pytest.raises(ModelError, match=r"tokenizer\.json: damaged .*; download it again"):
        InputOutputProcessor(build_test_config(folder))


def test_an_added_token_that_gets_another_id_than_written_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_added_tokens(tmp_path, "<|gap|>", first_id=SIZE + 3)
    edit(folder / "config.json", lambda content: content.update(vocab_size=SIZE + 8))
    (message,) = misfits_of(folder, caplog)
    assert "'<|gap|>' the id 297" in message
    assert "get 294" in message
