"""Tokens of a GGUF file's vocabulary are those of the tokenizer that it was written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf import GGUFWriter
from tokenizers import Tokenizer

from atom.errors import ModelError
from atom.gguf_file.tokenizer import read_gguf_tokenizer
from atom.tokenizer import Tokenizer as OwnTokenizer
from tests.support.models.byte_tokenizer import build_byte_tokenizer
from tests.support.models.gguf_model import CONTROL, NORMAL
from tests.support.models.vocabularies import SAMPLES, write_sentencepiece

UNKNOWN, USER_DEFINED, BYTE = 2, 4, 6
# Texts and the words that each rule cuts them into, as the models' own tokenizers do.
WORDS = {
    "gpt-2": (["it", "'s", " 1234", ",", " HELLO"], "it's 1234, HELLO"),
    "smollm": (["it", "'s", " ", "1", "2", "3", "4", ",", " HELLO"], "it's 1234, HELLO"),
    "llama-bpe": (["it", "'s", " ", "123", "4", ",", " HELLO"], "it's 1234, HELLO"),
    "qwen2": (["it", "'s", " ", "1", "2", "3", "4", ",", " HELLO"], "it's 1234, HELLO"),
    "tekken": (["it", "'s", " ", "1", "2", ",/", " HELlo", "UPper"], "it's 12,/ HELloUPper"),
}


def write(file: Path, **fields: Any) -> Path:
    """A file of a vocabulary alone."""
    writer = GGUFWriter(file, "llama")
    for key, value in fields.items():
        name = f"tokenizer.ggml.{key}" if key != "chat_template" else f"tokenizer.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return file


def byte_pairs(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    stored = build_byte_tokenizer()
    vocabulary = stored.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in stored.get_added_tokens_decoder().values()}
    merges = json.loads(stored.to_str())["model"]["merges"]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL if token in special else NORMAL for token in tokens],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": vocabulary["<|endoftext|>"],
        "eos_token_id": vocabulary["<|im_end|>"],
        **changes,
    }


def of_sentencepiece(
    oracle: sentencepiece.SentencePieceProcessor, **changes: Any
) -> dict[str, Any]:
    count = oracle.get_piece_size()
    return {
        "model": "llama",
        "tokens": [oracle.id_to_piece(index) for index in range(count)],
        "scores": [float(oracle.get_score(index)) for index in range(count)],
        "token_type": [
            UNKNOWN
            if oracle.is_unknown(index)
            else CONTROL
            if oracle.is_control(index)
            else BYTE
            if oracle.is_byte(index)
            else NORMAL
            for index in range(count)
        ],
        "bos_token_id": oracle.bos_id(),
        "eos_token_id": oracle.eos_id(),
        "unknown_token_id": oracle.unk_id(),
        **changes,
    }


@pytest.mark.parametrize("sample", SAMPLES)
def test_byte_pairs_are_those_of_tokenizer_json(tmp_path: Path, sample: str) -> None:
    found = read_gguf_tokenizer(write(tmp_path / "model.gguf", **byte_pairs())).tokenizer
    text = f"{sample}<|im_start|>{sample}"
    wanted = build_byte_tokenizer().encode(text)
    assert found.encode(text).ids == wanted.ids
    assert found.decode(wanted.ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("sample", SAMPLES)
def test_sentencepiece_is_as_sentencepiece_has_it(tmp_path: Path, sample: str) -> None:
    oracle = write_sentencepiece(tmp_path / "oracle", "bpe")
    file = write(tmp_path / "model.gguf", **of_sentencepiece(oracle))
    tokenizer = OwnTokenizer(file)
    ids = tokenizer.encode(sample, add_special_tokens=False)
    assert ids == oracle.encode(sample)
    assert tokenizer.encode(sample, add_special_tokens=True) == [oracle.bos_id(), *ids]
    assert tokenizer.decode(ids) == oracle.decode(ids)
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == oracle.decode(ids)


def test_a_file_may_leave_out_the_space_in_front(tmp_path: Path) -> None:
    oracle = write_sentencepiece(tmp_path / "oracle", "bpe")
    fields = of_sentencepiece(oracle, add_space_prefix=False, add_bos_token=False)
    tokenizer = OwnTokenizer(write(tmp_path / "model.gguf", **fields))
    assert tokenizer.encode("The cat", add_special_tokens=True) != oracle.encode("The cat")
    assert tokenizer.encode(" The cat", add_special_tokens=True) == oracle.encode("The cat")


@pytest.mark.parametrize("pre", WORDS)
def test_each_rule_cuts_words_as_its_models_do(tmp_path: Path, pre: str) -> None:
    words, text = WORDS[pre]
    found: Tokenizer = read_gguf_tokenizer(write(tmp_path / "m.gguf", **byte_pairs(pre))).tokenizer
    cut = found.pre_tokenizer.pre_tokenize_str(text)
    assert [text[first:end] for _, (first, end) in cut] == words


def test_what_texts_begin_with_is_in_the_file_or_the_rules(tmp_path: Path) -> None:
    begin = byte_pairs()["bos_token_id"]
    for index, (pre, said, begins) in enumerate(
        [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True),
         ("llama-bpe", False, False)]
    ):  # fmt: skip
        fields = byte_pairs(pre) | ({} if said is None else {"add_bos_token": said})
        tokenizer = OwnTokenizer(write(tmp_path / f"{index}.gguf", **fields))
        ids = tokenizer.encode("hello", add_special_tokens=True)
        assert (ids[0] == begin) is begins, (pre, said)


def test_a_text_that_is_always_one_token(tmp_path: Path) -> None:
    fields = byte_pairs()
    fields["tokens"].append("hello world")
    fields["token_type"].append(USER_DEFINED)
    tokenizer = OwnTokenizer(write(tmp_path / "model.gguf", **fields))
    last = len(fields["tokens"]) - 1
    assert tokenizer.encode("say hello world.", add_special_tokens=False)[-2:-1] == [last]
    assert tokenizer.decode([last]) == "hello world"
    assert tokenizer.special_token_id("hello world") is None


def test_templates_by_name(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.gguf", **byte_pairs(chat_template="{{ 1 }}"))
    assert read_gguf_tokenizer(plain).settings["chat_template"] == "{{ 1 }}"
    writer = GGUFWriter(tmp_path / "named.gguf", "llama")
    writer.add_chat_template(
        [{"name": "default", "template": "{{ 1 }}"}, {"name": "tool_use", "template": "{{ 2 }}"}]
    )
    for key, value in byte_pairs().items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    found = read_gguf_tokenizer(tmp_path / "named.gguf").settings["chat_template"]
    assert {each["name"]: each["template"] for each in found} == {
        "default": "{{ 1 }}",
        "tool_use": "{{ 2 }}",
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a kind that is not known": ({"model": "bert"}, "ggml.model is 'bert', and known are gpt2"),
    "a rule that is not known": ({"pre": "x"}, "ggml.pre is 'x', and known are gpt-2, llama-bpe"),
    "no rule": ({"pre": None}, "ggml.pre is 'default', and known are"),
    "no tokens": ({"tokens": None}, "ggml.tokens is missing"),
    "tokens that are numbers": ({"tokens": [1, 2]}, "ggml.tokens is no list of texts"),
    "a token twice": ({"tokens": ["a", "b", "a"]}, "ggml.tokens has 'a' twice, as 0 and 2"),
    "kinds of others": ({"token_type": [1, 1]}, "ggml.token_type is no list of 294 numbers"),
    "no merges": ({"merges": None}, "ggml.merges is '\\(none\\)'"),
    "half a merge": ({"merges": ["ab"]}, "ggml.merges holds 'ab', which is no pair"),
    "a merge of what is no token": ({"merges": ["\u4f60 \u597d"]}, "makes no tokenizer"),
    "a flag that is none": ({"add_bos_token": 7}, "ggml.add_bos_token is neither true nor false"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_vocabulary_that_is_not_sound(tmp_path: Path, case: str) -> None:
    changes, words = REFUSED[case]
    fields = {key: value for key, value in byte_pairs(**changes).items() if value is not None}
    file = write(tmp_path / "model.gguf", **fields)
    with pytest.raises(ModelError, match=rf"model\.gguf: .*{words}.*--tokenizer FOLDER"):
        read_gguf_tokenizer(file)
