"""End tokens come from all three sources, in whatever form each has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.checkpoint import open_checkpoint
from atom.end_tokens import end_token_ids, tokenizer_end_token
from atom.errors import ModelError
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "absent"}))


def own_id(folder: Path) -> int:
    """Id of the tokenizer's eos_token, looked up in the file by hand."""
    text = json.loads((folder / "tokenizer_config.json").read_text())["eos_token"]
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in tokens if token["content"] == text)


@pytest.mark.parametrize("generation", [0, [0], [0, 1], None, "absent"])
@pytest.mark.parametrize("config", [0, [2], None, "absent"])
def test_the_tokenizers_own_is_always_one_of_them(tiny: Path, generation: Any, config: Any) -> None:
    edit(tiny, "generation_config.json", eos_token_id=generation)
    edit(tiny, "config.json", eos_token_id=config)
    named: set[int] = {own_id(tiny)}
    for value in (generation, config):
        if value not in (None, "absent"):
            named |= set(value if isinstance(value, list) else [value])
    found = end_token_ids(open_checkpoint(tiny))
    assert set(found) == named
    assert len(found) == len(named)


@pytest.mark.parametrize("value", ["x", {"a": 1}, [None], ["1"], 1.5, True, [[1]]])
def test_what_is_no_id_is_refused_with_its_file(tiny: Path, value: Any) -> None:
    edit(tiny, "config.json", eos_token_id=0)
    edit(tiny, "generation_config.json", eos_token_id=value)
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id is .* must be"):
        end_token_ids(open_checkpoint(tiny))
    edit(tiny, "generation_config.json", eos_token_id="absent")


TEXT = "<end>"
FORMS: dict[str, tuple[dict[str, Any], int | None]] = {
    "text": ({"tokenizer_config.json": {"eos_token": TEXT}}, 7),
    "object": ({"tokenizer_config.json": {"eos_token": {"content": TEXT, "special": True}}}, 7),
    "special tokens map": ({"special_tokens_map.json": {"eos_token": TEXT}}, 7),
    "null, then the map": (
        {
            "tokenizer_config.json": {"eos_token": None},
            "special_tokens_map.json": {"eos_token": {"content": TEXT}},
        },
        7,
    ),
    "decoder of added tokens": (
        {
            "tokenizer_config.json": {
                "eos_token": TEXT, "added_tokens_decoder": {"9": {"content": TEXT}}
            }
        },
        9,
    ),
    "of the vocabulary": ({"tokenizer_config.json": {"eos_token": "plain"}}, 3),
    "unknown": ({"tokenizer_config.json": {"eos_token": "<none>"}}, None),
    "of another type": ({"tokenizer_config.json": {"eos_token": 5}}, None),
    "nothing": ({}, None),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_tokenizers_end_token(tmp_path: Path, form: str) -> None:
    files, expected = FORMS[form]
    tokenizer = {
        "added_tokens": [{"id": 7, "content": TEXT}],
        "model": {"type": "BPE", "vocab": {"plain": 3}},
    }
    for name, content in {"tokenizer.json": tokenizer, **files}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert tokenizer_end_token(tmp_path) == expected


def test_an_answer_ends_at_the_tokenizers_token_where_the_configuration_names_another(
    tmp_path: Path,
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    edit(folder, "generation_config.json", eos_token_id=0)
    edit(folder, "config.json", eos_token_id=None)
    driver = CoreDriver(str(folder), max_num_seqs=4)
    bias = {own_id(folder): 100.0}
    (answer,) = driver.generate([[1, 2, 3]], max_tokens=8, logit_bias=bias)
    assert answer == [own_id(folder)]
