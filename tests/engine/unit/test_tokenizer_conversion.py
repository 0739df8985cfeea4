"""Vocabularies that are no tokenizer.json give the tokens of the libraries they are made for."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from atom import convert_tokenizer
from atom.chat_template import load_chat_template
from atom.errors import ModelError
from atom.model_source.snapshot_folder import NEEDED_PATTERNS
from atom.tokenizer import Tokenizer, has_tokenizer
from tests.support.models.vocabularies import SAMPLES, write_kimi, write_sentencepiece, write_tekken

# Of Kimi-K2's own tokenization_kimi.py and of Mistral's tekken of 2024, as they publish them.
KIMI_WORDS = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
        r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
        r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_SPECIAL = {
    400: ("[BOS]", True),
    401: ("[EOS]", True),
    402: ("<|im_end|>", True),
    410: ("<|tool_call_begin|>", False),
}
TEKKEN_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def converted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert in this process, which has the libraries: to load them takes longer than the rest.
    Sentencepiece's vocabulary is converted as a server does."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", command[2:])
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = convert_tokenizer.main()
        return subprocess.CompletedProcess(command, code, "", said.getvalue())

    monkeypatch.setattr(subprocess, "run", run)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([*map(stream.push, ids), stream.flush()])


def test_sentencepiece_gives_its_own_librarys_tokens(tmp_path: Path) -> None:
    oracle = write_sentencepiece(tmp_path / "model", "bpe")
    tokenizer = Tokenizer(tmp_path / "model")
    for text in SAMPLES:
        text = text.lstrip(" ")  # transformers takes a space in front for the first word's own
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text), text
        assert tokenizer.decode(ids) == oracle.decode(ids)
        assert streamed(tokenizer, ids) == oracle.decode(ids)
    assert tokenizer.encode("a", add_special_tokens=True)[0] == oracle.bos_id()
    assert tokenizer.special_tokens()["eos_token"] == "</s>"


@pytest.mark.usefixtures("converted_here")
def test_a_class_that_gives_other_tokens_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "model", "unigram")
    with pytest.raises(ModelError, match=r"LlamaTokenizer gives other tokens than sentencepiece"):
        Tokenizer(tmp_path / "model")


@pytest.mark.usefixtures("converted_here")
def test_kimis_vocabulary_gives_tiktokens_tokens(tmp_path: Path) -> None:
    ranks = write_kimi(tmp_path / "model", KIMI_SPECIAL)
    special = {text: index for index, (text, _) in KIMI_SPECIAL.items()}
    oracle = tiktoken.Encoding(
        "kimi", pat_str=KIMI_WORDS, mergeable_ranks=ranks, special_tokens=special
    )
    tokenizer = Tokenizer(tmp_path / "model")
    for text in (*SAMPLES, "[BOS]hello<|im_end|><|tool_call_begin|>weather"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, allowed_special="all"), text
        for token in ids:
            assert tokenizer.spelling(token) == oracle.decode_single_token_bytes(token)
    ids = tokenizer.encode("[BOS]hi<|tool_call_begin|>[EOS]", add_special_tokens=False)
    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == "hi<|tool_call_begin|>"
    assert tokenizer.special_token_id("<|reserved_token_403|>") == 403
    assert tokenizer.special_tokens() == {"bos_token": "[BOS]", "eos_token": "[EOS]"}


@pytest.mark.usefixtures("converted_here")
def test_tekken_gives_tiktokens_tokens_behind_its_special_ones(tmp_path: Path) -> None:
    ranks = write_tekken(tmp_path / "model", TEKKEN_WORDS, TEKKEN_SPECIAL)
    oracle = tiktoken.Encoding(
        "tekken", pat_str=TEKKEN_WORDS, mergeable_ranks=ranks, special_tokens={}
    )
    tokenizer = Tokenizer(tmp_path / "model")
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [token - 20 for token in ids] == oracle.encode(text), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("[INST]", add_special_tokens=True) == [1, 3]
    assert tokenizer.special_tokens()["bos_token"] == "<s>"


# Special tokens of mistral-common's kinds 3 (which files of it do not name) and 13.
OLD_MISTRAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
NEW_MISTRAL = (*OLD_MISTRAL, "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
WEATHER = {"name": "weather", "description": "How <warm> it is", "parameters": {"type": "object"}}
ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Is it warm?"}]
CALL = {"name": "weather", "arguments": '{"city": "Zürich"}'}
THOUGHT = [{"type": "thinking", "thinking": "20 is warm."}, {"type": "text", "text": "Yes."}]
CALLED: list[dict[str, Any]] = [
    *ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "20 °C"},
]
REASONED = [*CALLED, {"role": "assistant", "content": THOUGHT}, {"role": "user", "content": "?"}]


@pytest.mark.usefixtures("converted_here")
@pytest.mark.parametrize(
    ("version", "special", "conversations"),
    [("v3", None, (ASKED, CALLED)), ("v13", NEW_MISTRAL, (ASKED, CALLED, REASONED))],
)
def test_conversations_of_tekken_are_mistral_commons(
    tmp_path: Path, version: str, special: tuple[str, ...] | None, conversations: Any
) -> None:
    """Its files have no template; those of before 2025 do not name their special tokens either."""
    folder = tmp_path / "model"
    write_tekken(folder, TEKKEN_WORDS, special, version)
    tokenizer = Tokenizer(folder)
    template = load_chat_template(folder, tokenizer)
    assert template is not None
    oracle = MistralTokenizer.from_file(str(folder / "tekken.json"))
    tools = [{"type": "function", "function": WEATHER}]
    for messages in conversations:
        asked = ChatCompletionRequest.model_validate({"messages": messages, "tools": tools})
        prompt = template.render(messages, tools=tools)
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert ids == oracle.encode_chat_completion(asked).tokens


@pytest.mark.usefixtures("converted_here")
def test_a_conversion_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tekken(tmp_path / "model", TEKKEN_WORDS, TEKKEN_SPECIAL)
    first = Tokenizer(tmp_path / "model").encode("The cat", add_special_tokens=False)

    def run(*_: object, **__: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(subprocess, "run", run)
    assert Tokenizer(tmp_path / "model").encode("The cat", add_special_tokens=False) == first
    write_tekken(tmp_path / "model", TEKKEN_WORDS, (*TEKKEN_SPECIAL, "[TOOL]"))
    with pytest.raises(AssertionError, match="converted again"):
        Tokenizer(tmp_path / "model")


@pytest.mark.usefixtures("converted_here")
def test_without_a_cache_that_can_be_written_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tekken(tmp_path / "model", TEKKEN_WORDS, TEKKEN_SPECIAL)
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert Tokenizer(tmp_path / "model").special_token_id("[INST]") == 3
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.usefixtures("converted_here")
def test_code_of_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_kimi(folder, KIMI_SPECIAL)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "OtherTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_kimi.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ModelError, match=r"how a OtherTokenizer cuts .* which is not run; supp"):
        Tokenizer(folder)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "content", "words", "in_process"),
    [
        ("tekken.json", '{"config": {}, "vocab": []}', r"cannot be converted .*'pattern'", True),
        ("tekken.json", "{", r"cannot be converted .*save_pretrained", True),
        ("tokenizer.model", "nonsense", r"converted .*atom-platform\[conversion\]", False),
    ],
)
def test_a_vocabulary_that_cannot_be_converted_says_why(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, content: str, words: str,
    in_process: bool,
) -> None:  # fmt: skip
    if in_process:
        request.getfixturevalue("converted_here")
    (tmp_path / name).write_text(content)
    assert has_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=words):
        Tokenizer(tmp_path)
    assert list((tmp_path / "cache" / "tokenizers").iterdir()) == []


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model", "tokenizer.model"])
def test_every_kind_is_downloaded(name: str) -> None:
    assert any(Path(name).match(pattern) for pattern in NEEDED_PATTERNS)
