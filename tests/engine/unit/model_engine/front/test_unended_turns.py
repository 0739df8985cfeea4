"""A chat template whose turns end with a token that ends no answer is told of at start."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from atom.chat_template import ChatTemplate
from atom.model_engine.front.input_output_processor import InputOutputProcessor, unended_turn
from atom.tokenizer import Tokenizer
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.models.byte_tokenizer import END_OF_TEXT, TURN_END

TEMPLATES = Path(__file__).parents[2] / "chat_templates"
SIZE = 1000
# What each family's answers end with; none of GLM's, which the next turn's mark ends.
TURN_ENDS = {
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "kimi": "<|im_end|>",
    "glm": None,
    "gpt_oss": "<|return|>",
}


def tokenizer_with(folder: Path, *added: str, special: bool = True) -> Tokenizer:
    entries = {chr(code): code - 32 for code in range(32, 127)}
    tokenizer = tokenizers.Tokenizer(models.BPE(entries, [], unk_token=" "))
    tokens = [tokenizers.AddedToken(text, special=special, normalized=False) for text in added]
    tokenizer.add_tokens(tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(("family", "end"), TURN_ENDS.items())
def test_a_family_is_warned_of_only_where_its_end_is_no_end_token(
    family: str, end: str | None, special: bool, tmp_path: Path
) -> None:
    source = (TEMPLATES / f"{family}_like.jinja").read_text(encoding="utf-8")
    roles = {"bos_token": "<s>", "eos_token": "</s>"}
    tail = ChatTemplate(source, roles).end_of_turn()
    marks = ("<|none|>", *filter(None, dict.fromkeys([*TURN_ENDS.values(), "<s>"])))
    tokenizer = tokenizer_with(tmp_path, *marks, special=special)
    (none,) = tokenizer.encode("<|none|>", add_special_tokens=False)
    said = unended_turn(tail, tokenizer, SIZE, [none])
    if end is None:
        assert said == ""
        return
    (token,) = tokenizer.encode(end, add_special_tokens=False)
    assert f"{end!r} (id {token})" in said
    assert f"ids: {none}," in said
    assert f"Add {token} to eos_token_id in generation_config.json" in said
    assert unended_turn(tail, tokenizer, SIZE, [none, token]) == ""


@pytest.mark.parametrize("tail", ["", "\n", " ### ", "<|nothing|>"])
def test_a_turn_without_a_token_at_its_end_says_nothing(tail: str, tmp_path: Path) -> None:
    assert unended_turn(tail, tokenizer_with(tmp_path, "<|end|>"), SIZE, [1]) == ""


def test_an_end_token_behind_another_ends_the_turn(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "<|end|>", "</s>")
    (end,) = tokenizer.encode("</s>", add_special_tokens=False)
    assert unended_turn("<|end|></s>\n", tokenizer, SIZE, [end]) == ""


def test_of_a_token_that_the_model_cannot_generate_nothing_is_said(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "<|end|>")
    (end,) = tokenizer.encode("<|end|>", add_special_tokens=False)
    assert unended_turn("<|end|>", tokenizer, end + 1, [1]) != ""
    assert unended_turn("<|end|>", tokenizer, end, [1]) == ""


def test_a_template_that_refuses_the_question_says_nothing() -> None:
    only_users = "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no') }}"
    source = only_users + "{% endif %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(source, {}).end_of_turn() == ""


@pytest.mark.parametrize("end", [TURN_END, END_OF_TEXT])
def test_the_server_warns_at_start(
    end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": end}))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["eos_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        InputOutputProcessor(build_test_config(tmp_path)).warn_of_misfits()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (end != TURN_END)
    assert all(f"turn with {TURN_END!r}" in message for message in told)
