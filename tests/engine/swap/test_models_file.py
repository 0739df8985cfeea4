"""The file of `atom serve --models`: what cannot be served is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.errors import ConfigError
from tests.engine.swap.models_yaml import models_in, write_models

LORA = {"gpu-memory-utilization": 0.4, "enable-lora": True}


@pytest.fixture
def models_file(tmp_path: Path) -> Path:
    return write_models(tmp_path, ("chat", "code", "math"))


def test_options_of_an_entry_win_over_the_line(models_file: Path) -> None:
    chat, code, _ = models_in(models_file, "--num-kv-blocks", "7", "--max-num-seqs", "5")
    assert (chat.sharing.share, chat.sharing.pinned, code.sharing.pinned) == (0.4, True, False)
    assert chat.options.served_names == ("chat",)
    engine = code.options.engine
    assert (engine.cache.num_kv_blocks, engine.scheduler.max_num_seqs) == (100, 5)
    assert engine.sleep.enabled


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"options": {"gpu-memory-utilization": 0.6}}, "beside 0.4 of the pinned ones"),
        ({"pinned": True, "options": {"gpu-memory-utilization": 0.55}}, "beside 0.55 of"),
        ({"name": "chat"}, "two models are called chat"),
        ({"name": ""}, r"\[1\]: name must be a text"),
        ({"model": 3}, "model must be a text, got 3"),
        ({"pinned": "yes"}, "pinned must be true or false"),
        ({"port": 3}, "port is unknown"),
        ({"options": {"port": 3}}, "port is the whole server's"),
        ({"options": [1]}, "options must hold flag: value"),
        ({"options": LORA | {"lora-modules": ["math=/adapters/x"]}}, "are called math"),
        ({"options": LORA | {"lora-modules": ["chat=/adapters/x"]}}, "are called chat"),
    ],
)
def test_files_that_cannot_be_served_are_refused_before_anything_starts(
    models_file: Path, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    entries = yaml.safe_load(models_file.read_text())
    entries[1] |= change
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump(entries))
    with pytest.raises(ConfigError, match=told):
        models_in(file)


def test_an_adapter_s_name_is_one_model_s_alone(models_file: Path, tmp_path: Path) -> None:
    entries = yaml.safe_load(models_file.read_text())
    for entry in entries[1:]:
        entry["options"] = LORA | {"lora-modules": ["sql=/adapters/x"]}
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump(entries))
    with pytest.raises(ConfigError, match="are called sql"):
        models_in(file)


@pytest.mark.parametrize("words", [("--model", "x"), ("--api-server-count", "2")])
def test_a_line_that_contradicts_the_file_is_refused(
    models_file: Path, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="leave out"):
        models_in(models_file, *words)


def test_an_options_flag_that_there_is_not_is_told(
    models_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = yaml.safe_load(models_file.read_text())
    entries[2]["options"]["max-model-lne"] = 3
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump(entries))
    with pytest.raises(SystemExit):
        models_in(file)
    assert "--max-model-lne: did you mean --max-model-len?" in capsys.readouterr().err
